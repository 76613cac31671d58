"""The groups of a config whose options name a class or function in _target_, and what these take."""

import inspect
import pickle
import pkgutil
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import is_dataclass, make_dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp.config.bounds import check_values, hints
from fedexp.config.kinds import in_words
from fedexp.config.options import CONF, elsewhere
from fedexp.errors import ConfigError, nearest, require

GROUPS = ("dataset", "partition", "model", "algorithm")  # each names a constructor in _target_
PARTS = {  # an algorithm's parts, which name a constructor as well; each with the one it has by default
    "selection": "fedexp.selection.uniform.Uniform", "server_optimizer": "fedexp.server_optimizer.sgd.Sgd",
    "compression": "fedexp.compression.none.NoCompression", "privacy": "fedexp.privacy.none.NoPrivacy",
    "system": "fedexp.system.none.Ideal",
}  # fmt: skip
GIVEN = {  # what fedexp passes to each constructor besides the keys of its group
    "dataset": set(),
    "partition": {"dataset", "clients", "seed"},
    "model": {"shape", "classes"},
    "algorithm": set(PARTS),
}
_LONGEST_NAME = 100  # characters: several stand in a folder's name, which has at most 255 bytes
_FOR_PEOPLE = ("name", "source")  # keys of a group that no constructor takes
OF_FEDEXP: dict[str, dict[str, Any]] = {  # keys of a group that fedexp reads itself, and their defaults
    "partition": {"seed": None, "holdout": 0.0, "noise": 0.0, "quantity_skew": None},
    "model": {"pretrained": None},
}  # fmt: skip


def of_fedexp(config: Mapping[str, Any] | DictConfig, group: str, name: str) -> Any:
    """The value of a group's key that fedexp reads itself; its default where an earlier version's config lacks it."""
    return config[group].get(name, OF_FEDEXP[group][name])


def check_names(group: str, node: Mapping[str, Any], given: set[str]) -> None:
    """Raise ConfigError for a key of the group that its constructor does not take, and for a `name` that is no word."""
    target = constructor(group, node.get("_target_"))
    name = node.get("name")
    require(isinstance(name, str | int | float | None), f"{group}.name", name, "must be a word")
    taken = not str(node.get("_target_")).startswith("fedexp.") and (CONF / group / f"{name}.yaml").is_file()
    right = f"is not the class of {group}={name}, under whose name the run would stand; choose {group}=own, or give "
    require(not taken, f"{group}._target_", node.get("_target_"), f"{right}{group}.name=NAME as well")
    require(len(str(name)) <= _LONGEST_NAME, f"{group}.name", name, f"must be of at most {_LONGEST_NAME} characters")
    source = node.get("source")
    require(source is None or group == "dataset", f"{group}.source", source, "no such key; only a data set has one")
    parameters = _parameters(group, target)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    takes = group != "dataset" or "transform" in parameters  # a key of every data set, in conf/config.yaml
    require(takes, f"{group}._target_", node.get("_target_"), "must take transform, which every data set is given")
    known = {*parameters} - given
    for name in node:
        if name not in (*known, *_FOR_PEOPLE, "_target_", *OF_FEDEXP.get(group, ())):
            key = f"{group}.{name}"
            others = elsewhere(key)
            here = nearest(str(name), known) if known or not others else ""
            right = f"no such key; {others}{here}".removesuffix("; ")
            raise ConfigError(key, node[name], f"{right}{_not_a_field(target, str(name))}")


def _not_a_field(target: Any, name: str) -> str:
    """What to do where a class has this name, but its constructor lacks it: the name has no type, or the class inherits
    the constructor of a dataclass, since that it must be decorated itself is easily forgotten."""
    if not (isinstance(target, type) and is_dataclass(target)):
        return ""
    own = vars(target).get(name)
    if name in vars(target) and not callable(own) and name not in inspect.get_annotations(target):
        return f"; {target.__name__} gives {name} no type: write {name}: {type(own).__name__} = ..."
    inherits = not {"__dataclass_fields__", "__init__"} & {*vars(target)}
    if not inherits or name not in inspect.get_annotations(target):
        return ""
    return f"; {target.__name__} annotates it: decorate the class with @dataclass(frozen=True, kw_only=True)"


def check_arguments(group: str, node: Mapping[str, Any], given: set[str]) -> None:
    """Raise ConfigError unless the group's keys are arguments of its constructor, each of the right type. node: the
    group, resolved."""
    check_names(group, node, given)
    target = constructor(group, node.get("_target_"))
    parameters = _parameters(group, target)
    _check_given(group, str(node.get("_target_")), parameters)
    own = _arguments(node, group)
    for name, parameter in parameters.items():
        missing = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if missing and name not in given and name not in own:
            raise ConfigError(f"{group}.{name}", None, "must be given")
    _check_types(group, target, own)
    check_values(target, own, group)
    for name, value in own.items():
        if isinstance(value, dict) and "_target_" in value:  # a constructor within the group, which is given the same
            check_arguments(f"{group}.{name}", value, given)


def _check_given(group: str, target: str, parameters: Mapping[str, inspect.Parameter]) -> None:
    """Raise ConfigError unless a group's constructor takes all that fedexp passes to it."""
    given = GIVEN.get(group, set())
    lacking = sorted(given - {*parameters})
    if not lacking or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    right = f"must take {', '.join(sorted(given))}, which fedexp passes by these names; it lacks {', '.join(lacking)}"
    right = "must be a subclass of fedexp.algorithms.fedavg.FedAvg" if group == "algorithm" else right
    raise ConfigError(f"{group}._target_", target, right)


def constructor(group: str, target: Any) -> Any:
    """The class or function that a group names. Raises ConfigError if there is none, it cannot be imported, or it does
    not tell what arguments it takes."""
    right = "must name a class or function, e.g. package.module.name"
    require(isinstance(target, str), f"{group}._target_", target, right)
    found = located(f"{group}._target_", target)
    require(callable(found), f"{group}._target_", target, f"is a {type(found).__name__}, not a class or function")
    right = "is a function; an algorithm is a class, a subclass of fedexp.algorithms.fedavg.FedAvg"
    require(group != "algorithm" or isinstance(found, type), f"{group}._target_", target, right)
    _parameters(group, found)
    return found


@cache
def _parameters(group: str, target: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except ValueError as error:  # raised for some callables that are not written in Python
        name = getattr(target, "__qualname__", target)
        raise ConfigError(f"{group}._target_", name, f"does not tell what arguments it takes ({error})") from error


def located(key: str, path: str) -> Any:
    """What `path` names, package.module.name. Raises ConfigError for `key` if it cannot be imported."""
    try:
        return _of_fedexp(path) if path.startswith("fedexp.") else pkgutil.resolve_name(path)
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split()) + _place(error)
        if "inherit non-frozen dataclass" in why:
            why += "; decorate it with @dataclass(frozen=True, kw_only=True)"
        raise ConfigError(key, path, f"cannot be imported ({why})") from error


def _place(error: Exception) -> str:
    """The last place in a user's file on the way to an error, after a comma; empty where there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    installed = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(Path(__file__).parents[1]), "<")
    own = [frame for frame in frames if not frame.filename.startswith(installed)]
    return f", {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


@cache
def _of_fedexp(path: str) -> Any:
    return pkgutil.resolve_name(path)


def _check_types(group: str, target: Any, own: dict[str, Any]) -> None:
    """OmegaConf's own conversion rules, against the constructor's type hints."""
    for name, value in own.items():
        hint = hints(target).get(name, Any)
        if isinstance(value, dict) and "_target_" in value:
            continue
        if isinstance(value, str) and is_dataclass(hint):
            choice = f"{group.split('.')[0]}@{group}.{name}={value}"
            raise ConfigError(f"{group}.{name}", value, f"is an option with keys of its own; choose it by {choice}")
        if isinstance(value, dict) and is_dataclass(hint):
            raise ConfigError(f"{group}.{name}._target_", None, "must name a class or function")
        if hint is bool:
            require(isinstance(value, bool), f"{group}.{name}", value, "must be true or false")
        refused = _refused(name, hint, pickle.dumps(value))
        if refused is not None:
            raise ConfigError(f"{group}.{name}", value, refused)


@lru_cache(maxsize=10_000)  # a table's cells have the same few values again and again
def _refused(name: str, hint: Any, pickled: bytes) -> str | None:
    """What is wrong with a value, pickled, as an argument of this type; None where OmegaConf finds nothing."""
    value = pickle.loads(pickled)
    try:
        schema = OmegaConf.structured(make_dataclass("Schema", [(name, hint, MISSING)]))
    except OmegaConfBaseException:
        return None  # a type that YAML cannot express: the constructor's own business
    try:
        merged: Any = OmegaConf.merge(schema, {name: value})
        converted = merged[name]
    except OmegaConfBaseException as error:
        inside = isinstance(value, list) and "of type 'ListConfig'" not in str(error)
        return in_words(str(error).splitlines()[0], inside, value)
    text = isinstance(value, str) and isinstance(converted, int | float)  # it would be given as the text that it is
    return "is a text, and must be a number; leave out the quotes" if text else None


def arguments(node: DictConfig) -> dict[str, Any]:
    """The constructor's arguments of a group, as plain values."""
    plain: Any = OmegaConf.to_container(node, resolve=True)
    return _arguments(plain, str(node._key()))


def _arguments(plain: Mapping[str, Any], group: str) -> dict[str, Any]:
    others = (*_FOR_PEOPLE, "_target_", *OF_FEDEXP.get(group, ()))
    return {key: value for key, value in plain.items() if key not in others}
