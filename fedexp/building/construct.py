"""Calling the constructors that the config's groups name."""

import inspect
import traceback
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object
from omegaconf import DictConfig
from torch import nn

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import hints
from fedexp.config.constructors import PARTS, arguments
from fedexp.data.dataset import Dataset
from fedexp.data.transform import Transform
from fedexp.errors import ConfigError, require
from fedexp.record.tracker import Tracker

# What a constructor may raise for values that it did not check and cannot work with.
REFUSALS = (
    ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, LookupError, MemoryError, OSError,
    AssertionError, ImportError, InstantiationException,
)  # fmt: skip
_KINDS = {  # what the groups' constructors must give
    "dataset": Dataset, "dataset.transform": Transform, "partition": list, "model": nn.Module, "algorithm": FedAvg,
    "tracking": Tracker, **{part: get_object(standard) for part, standard in PARTS.items()},
}  # fmt: skip


def construct(node: DictConfig, **given: Any) -> Any:
    """Call a group's constructor with its keys and with the arguments that fedexp gives. Raises ConfigError where that
    fails, or returns something of the wrong kind."""
    group, target = str(node._get_full_key(None)), node["_target_"]
    try:
        found, kind = _call(group, arguments(node), target, given), _KINDS[group]
        right = f"must be, or return, a {kind.__module__}.{kind.__name__} (or one of a subclass)"
        require(isinstance(found, kind), f"{group}._target_", target, right)
        return found
    except ConfigError:
        raise
    except REFUSALS as error:
        raise ConfigError(group, node.get("name"), f"cannot be built from its keys ({in_short(error)})") from error


def in_short(error: Exception) -> str:
    """What an error says and the place where it was raised."""
    said, where = " ".join(str(error).split()), traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {said}, {Path(where.filename).name}:{where.lineno}"


def _call(group: str, keys: dict[str, Any], target: str, given: dict[str, Any]) -> Any:
    """A constructor's result. Keys that are constructors themselves (algorithm.clustering) are called first, with those
    of the given arguments that they accept. Errors name the full key."""
    own = {}
    for name, value in keys.items():
        if isinstance(value, dict) and "_target_" in value:
            inner = {key: each for key, each in value.items() if key not in ("name", "_target_")}
            accepted = inspect.signature(get_object(value["_target_"])).parameters
            try:
                shared = {key: each for key, each in given.items() if key in accepted}
                own[name] = _call(f"{group}.{name}", inner, value["_target_"], shared)
            except ConfigError as error:
                outer, _, last = error.key.partition(".")
                told = outer != group or error.key.startswith(f"{group}.{name}.")
                raise ConfigError(error.key if told else f"{group}.{name}.{last}", error.value, error.right) from error
        else:
            own[name] = value
    constructor = get_object(target)
    types = hints(constructor)
    own = {name: str(value) if types.get(name) is str else value for name, value in own.items()}  # a folder named 2024
    return constructor(**own, **given)
