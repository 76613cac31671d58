"""The config that is saved in a run's folder."""

from pathlib import Path
from typing import Any, cast

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp.config.checks import check_resolved
from fedexp.config.compose import composed, first_line, lists
from fedexp.config.constructors import GROUPS, PARTS
from fedexp.config.explain import key_names, nearest_key
from fedexp.config.known import apply
from fedexp.config.schema import ADDED, Settings, lacking, resolved
from fedexp.errors import ConfigError, require

_OF_THE_MACHINE = ("hardware", "tracking")  # groups whose option is no part of the experiment


def saved(folder: Path, words: list[str]) -> DictConfig:
    """The checked config of a run's folder with overrides. Raises ConfigError where there is none. This machine need
    not have what the run needs: its results can be read anywhere."""
    try:
        held = OmegaConf.load(folder / "config.yaml")
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError("", folder, f"holds no config.yaml that can be read ({first_line(error)})") from error
    plain = OmegaConf.to_container(held)
    # fedexp writes no interpolations; in a file from elsewhere they could read environment variables.
    require("${" not in str(plain), "", folder, "holds a config.yaml with interpolations, ${...}: not resolved")
    absent = lacking(plain)
    require(not absent, "", folder, f"was written by another version of fedexp: config.yaml lacks {', '.join(absent)}")
    try:
        config = cast(
            DictConfig,
            OmegaConf.merge(OmegaConf.structured(Settings), ADDED, held, {"output_root": str(folder.resolve().parent)}),
        )
    except OmegaConfBaseException as error:
        raise ConfigError("", folder, f"holds a config.yaml that cannot be used ({first_line(error)})") from error
    OmegaConf.set_struct(config, True)
    for override in OverridesParser.create().parse_overrides(lists(words)):
        _change(config, override)
    check_resolved(resolved(config))
    return config


def _own(key: str, value: Any, config: DictConfig) -> str:
    """How to give a key of the user's own class or measure, which the saved config does not name."""
    group = key.partition(".")[0]
    target = str(config[group].get("_target_", "fedexp.")) if OmegaConf.is_dict(config.get(group)) else "fedexp."
    own = group == "measures" or not target.startswith("fedexp.")
    return f"; for one of your own: +{key}={value}" if own else ""


def _change(config: DictConfig, override: Override) -> None:
    key, _, value = override.input_line.lstrip("+~").partition("=")
    require(not override.is_sweep_override(), key, value, "must be a single value: this program carries out one run")
    right = "chooses a protocol, which cannot be changed in a saved run; give its keys one by one"
    require(key != "paper" or override.value() == config.paper, key, value, right)
    right = f"cannot be changed in a saved run; give its own keys, {key}.KEY=VALUE"
    require(key not in (*GROUPS, *PARTS), key, value, right)
    if key in _OF_THE_MACHINE:
        config[key] = composed([override.input_line])[key]
        return
    keys = key_names(OmegaConf.to_container(config))
    adds = override.is_add() or override.is_force_add()
    require(adds or key in keys, key, value, f"no such key; {nearest_key(key, keys)}{_own(key, value, config)}")
    try:
        apply(override, config)
    except HydraException as error:
        raise ConfigError(key, value, first_line(error)) from error
