"""Hydra's and OmegaConf's errors in one line: the key, the value, what would be right."""

import re
import shlex
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from fedexp.errors import nearest


def explain(error: Exception, words: list[str], conf: Path) -> str:
    """What is wrong with the command line `words`, given the error that composing it raised."""
    if isinstance(error, OverrideParseException):
        return _unreadable(error)
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    groups = {path.relative_to(conf).as_posix(): path for path in conf.rglob("*") if path.is_dir()}
    for word in overrides:
        name, value = word.lstrip("+~").split("=", 1)
        if name in groups:
            options = [path.stem for path in groups[name].glob("*.yaml")]
            wrong = [one for one in value.strip("[]").split(",") if one not in options]
            if wrong and f"{name}/" in str(error):
                return f"{name}={wrong[0]}: no such option; {nearest(wrong[0], options)}"
    lacking = re.search(r"Could not find '(\w+)/(\w+)/(\w+)'", str(error))
    if lacking:
        group, paper, choice = lacking.groups()
        known = [path.stem for path in (conf / group / paper).glob("*.yaml")]
        return f"paper={paper}: gives no {group} for {choice}; name one with {group}=NAME; {nearest(choice, known)}"
    detail = _deepest(error)
    keys = _known_keys(overrides, groups, conf)
    for word in overrides:
        name, _, value = word.lstrip("+~").partition("=")
        unknown = bool(keys) and name not in keys and name not in groups and not name.startswith("hydra")
        group = name.partition(".")[0]
        chosen = group not in ("table", "scale") and any(re.match(rf"\+table=|{group}=.*,", one) for one in words)
        if unknown and not word.startswith("+") and group in groups and chosen:
            return f"{name}={value}: the sweep's runs choose their {group}; for a key of all of them: ++{name}={value}"
        if unknown and not word.startswith("+"):
            return f"{name}={value}: no such key; {_nearest_key(name, keys)}"
    key = re.search(r"full_key: (\S+)", detail)
    if key:
        given = dict(word.lstrip("+~").split("=", 1) for word in overrides)
        value = given.get(key[1], "")
        return f"{key[1]}={value}: {detail.splitlines()[0]}"
    return " ".join(detail.split())


def _unreadable(error: OverrideParseException) -> str:
    """A word that is not in Hydra's grammar of overrides."""
    name, given, value = error.override.partition("=")
    if not given:
        return f"{name}: must be KEY=VALUE ({error.message.splitlines()[-2]})"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    quoted = shlex.quote(f'{name}="{escaped}"')
    home = f"write $HOME{value[1:]}, or " if value.startswith("~/") else ""
    return f"{name}={value}: cannot be read as it stands; {home}quote twice: {quoted}"


def _deepest(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def _known_keys(overrides: list[str], groups: dict[str, Path], conf: Path) -> list[str]:
    """All keys of the config that the valid group choices among the overrides give."""
    choices = []
    for word in overrides:
        name, value = word.lstrip("+").split("=", 1)
        if name in groups and (groups[name] / f"{value}.yaml").exists():
            choices.append(word)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf), version_base="1.3"):
            return _flatten(compose("config", overrides=choices))
    except HydraException:
        return []


def _nearest_key(name: str, keys: list[str]) -> str:
    """The likeliest slip is in the last part of a name: a hint among its siblings, where it has any."""
    parent, _, last = name.rpartition(".")
    siblings = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == parent]
    return nearest(last, siblings) if siblings else nearest(name, keys)


def _flatten(node: DictConfig, prefix: str = "") -> list[str]:
    names = []
    for name in node:
        names.append(f"{prefix}{name}")
        if OmegaConf.is_interpolation(node, str(name)):
            continue
        child = OmegaConf.select(node, str(name), throw_on_missing=False)
        if isinstance(child, DictConfig):
            names.extend(_flatten(child, f"{prefix}{name}."))
    return names
