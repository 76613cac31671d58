"""The name of a run: a fingerprint of the keys that can change its result, and a readable part."""

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

from omegaconf import OmegaConf

from fedexp.config.bounds import hints
from fedexp.config.constructors import GIVEN, GROUPS, OF_FEDEXP, PARTS, constructor
from fedexp.config.schema import Evaluate
from fedexp.config.settings import Hardware, Local
from fedexp.errors import ConfigError

# Where a run is carried out and tracked, and what is written where and when.
CIRCUMSTANCES = ("hardware", "tracking", "output_root", "checkpoint_seconds", "pictures", "artifacts_every")
# Keys that cannot change a result, except by continuing the run.
_WITHOUT_EFFECT = (*CIRCUMSTANCES, "paper", "table", "scale", "sweep", "rounds", "metric")
_OF_HARDWARE = ("precision", "convolution", "compile")  # keys of hardware that can change a result
# Keys that choose a random draw of one protocol: reports group runs that differ in these alone.
DRAWS = ("seed", "partition.distribution")
_EDITION = b"fedexp 2"  # since 0.2.0, where local.lr and local.momentum have other defaults
_DEFAULTS: dict[str, Any] = {"targets": [], "reference": None, "reference_rounds": None}
_MEASURES = {
    "divergence": "fedexp.measure.divergence.divergence", "cohort_emd": "fedexp.measure.skew.cohort_emd",
}  # fmt: skip

Plain = dict[str, Any]
Find = Callable[[str, str], Any]  # (a group, its _target_) to the constructor, or None


def fingerprint(config: Mapping[Any, Any]) -> str:
    """Ten hexadecimal digits that name every key that can change the result, and nothing else.

    Raises ConfigError for a constructor that cannot be imported.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config
    text = json.dumps(relevant(plain), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=5, person=_EDITION).hexdigest()


def relevant(config: Mapping[str, Any]) -> Plain:
    """The settings that can change the result or its contents, without those at their constructors' defaults: a new key
    whose default keeps the old behaviour therefore renames no finished run. A changed default would give one run's name
    to another; it needs a new key instead, or a new edition, which renames all runs.
    """
    kept = _settings(config, constructor, every=False)
    for part, standard in PARTS.items():
        if kept[part] == {"_target_": standard}:
            del kept[part]
    return {key: value for key, value in kept.items() if value != {}}


def effective(config: Mapping[str, Any]) -> tuple[Plain, Plain]:
    """The settings by which runs are compared: with all defaults filled in, and only those that differ from them.

    Only fedexp's own modules are imported because a config names them: the defaults of other constructors are known
    only if their module is loaded already.
    """
    return _settings(config, _loaded, every=True), _settings(config, _loaded, every=False)


def _settings(config: Mapping[str, Any], find: Find, every: bool) -> Plain:
    kept = {key: value for key, value in config.items() if key not in _WITHOUT_EFFECT}
    kept = _over(_DEFAULTS, kept, every)
    chosen = {**dict.fromkeys(_MEASURES), **kept["measures"]}  # one that is absent is as one that is null
    chosen = {name: path for name, path in chosen.items() if path is not None or name in _MEASURES}
    kept["measures"] = _over(_MEASURES, chosen, every)
    for name, kind in (("local", Local), ("evaluate", Evaluate)):
        kept[name] = _over(_defaults(kind), _typed_values(kind, kept[name]), every)
    hardware = {name: config["hardware"][name] for name in _OF_HARDWARE if name in config["hardware"]}
    kept |= _over({name: _defaults(Hardware)[name] for name in _OF_HARDWARE}, hardware, every)
    for group in (*GROUPS, *PARTS):
        kept[group] = _constructed(group, kept[group], find, every)
    source = kept["model"].get("pretrained")
    if source is not None and not re.fullmatch(r"\w+_Weights\.\w+", str(source)):  # a file is identified by its path
        kept["model"]["pretrained"] = str(Path(str(source)).expanduser().absolute())
    kept["dataset"] = _data(config["dataset"], kept["dataset"], find("dataset", config["dataset"]["_target_"]))
    return kept


def _data(node: Mapping[str, Any], kept: Plain, target: Any) -> Plain:
    """A data set's settings without its folder where the data are known, and so the same in every folder; other data
    are identified by their folder."""
    downloads = "download" in node or (target is not None and "download" in _defaults(target))
    known = getattr(target, "known", downloads)
    kept = {key: value for key, value in kept.items() if key not in ("source", "download")}
    if known or kept.get("root") is None:
        return {key: value for key, value in kept.items() if key != "root"}
    return {**kept, "root": str(Path(str(kept["root"])).expanduser().absolute())}


def _constructed(group: str, node: Mapping[str, Any], find: Find, every: bool) -> Plain:
    """A constructor and its arguments; constructors among these are treated in the same way."""
    given = {key: value for key, value in node.items() if key not in ("name", "_target_")}
    target, defaults = find(group, node.get("_target_")), dict(OF_FEDEXP.get(group, {}))
    if target is not None:
        own = {name: value for name, value in _defaults(target).items() if name not in GIVEN.get(group, ())}
        defaults, given = {**defaults, **own}, _typed_values(target, given)
    if group == "partition":  # most keys that fedexp reads itself are fractions, and no constructor has their types
        fractions = OF_FEDEXP[group].keys() - {"seed"}
        given = {name: _typed(value, float) if name in fractions else value for name, value in given.items()}
    kept = _over(defaults, given, every)
    for name, value in kept.items():
        if _is_constructor(value):
            kept[name] = _constructed(f"{group}.{name}", value, find, every)
    return {"_target_": node["_target_"], **kept}


def _is_constructor(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("_target_"), str)


def _over(defaults: Mapping[str, Any], values: Mapping[str, Any], every: bool) -> Plain:
    """The `values` that differ from `defaults`; with `every`, all of both."""
    if every:
        return {**defaults, **values}
    return {name: value for name, value in values.items() if name not in defaults or defaults[name] != value}


def _loaded(group: str, target: str) -> Any:
    """A constructor; modules that only the config names, not fedexp's own, are not imported for it."""
    if not target.startswith("fedexp.") and target.rpartition(".")[0] not in sys.modules:
        return None
    try:
        return constructor(group, target)
    except ConfigError:  # perhaps of another version: its settings are compared as written
        return None


@cache
def _defaults(target: Any) -> Plain:
    """The defaults of a constructor's arguments, as far as they are plain values, by name."""
    found = {name: each.default for name, each in inspect.signature(target).parameters.items()}
    if is_dataclass(target):
        made = {each.name: each.default_factory for each in fields(target)}
        found |= {name: factory() for name, factory in made.items() if factory is not MISSING}
    plain = (str, bool, int, float, list, tuple, dict, type(None))
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in _typed_values(target, found).items() if isinstance(value, plain)
    }  # fmt: skip


def _typed_values(target: Any, values: Mapping[str, Any]) -> Plain:
    return {name: _typed(value, hints(target).get(name)) for name, value in values.items()}


def _typed(value: Any, hint: Any) -> Any:
    """The value with 1 read as 1.0 where a float is expected: both are the same setting."""
    options = get_args(hint) if type(None) in get_args(hint) else (hint,)
    if isinstance(value, int) and not isinstance(value, bool) and float in options and int not in options:
        return float(value)
    if isinstance(value, list):
        inner = next((get_args(option)[0] for option in options if get_origin(option) is list), None)
        return [_typed(each, inner) for each in value]
    return value


def data_used(dataset: Mapping[str, Any]) -> str:
    """The data set's name, with its `source` where that says it is not the original: "cifar10 (JPEG copy)"."""
    name, source = str(dataset.get("name", "own")), dataset.get("source")
    return f"{name} ({source})" if source else name


def readable(config: Mapping[Any, Any]) -> str:
    """What a run is, for people: data set, partition, algorithm, seed. Cut off at 200 bytes, as a folder's name may
    have 255."""
    names = [str(config[group].get("name", "own")) for group in ("partition", "model", "algorithm")]
    parts = [data_used(config["dataset"]), *names, f"seed{config['seed']}"]
    name = "-".join(re.sub(r"[^\w.=+-]+", "_", part).strip("_") for part in parts)
    return name.encode()[:200].decode(errors="ignore")
