"""What is told of a user's own classes before the first round, from the names that their code reads."""

import difflib
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from fedexp.algorithms.fedavg import FedAvg
from fedexp.errors import require
from fedexp.selection.uniform import Uniform
from fedexp.server_optimizer.sgd import Sgd


def misspelt(kind: type) -> Iterator[tuple[str, str]]:
    """Names in a user's class that are nearly those of hooks, and these hooks."""
    parents = (each for each in kind.__mro__ if each.__module__.startswith("fedexp."))
    known = [name for name in dir(next(parents, object)) if not name.startswith("_")]
    functions = {name: value for each in _own(kind) for name, value in vars(each).items() if callable(value)}
    called = {name for function in functions.values() for name in _names(function, set())}
    for name in functions:
        if name not in known and name not in called and not name.startswith("_"):
            yield from ((name, hook) for hook in difflib.get_close_matches(name, known, n=1, cutoff=0.8))


def check_use_of_parts(algorithm: FedAvg) -> None:
    """Raise ConfigError for a part that a user's own hooks leave without effect: two runs with different parts, and
    folders of their own, would give the same numbers."""
    selection, optimizer, name = algorithm.selection, algorithm.server_optimizer, type(algorithm).__name__
    hooks = _without(algorithm, ("aggregate", "step"), {"aggregate", "step", "server_optimizer"})
    right = f"has no effect on {name}, whose {hooks} neither calls self.step nor FedAvg's {hooks}"
    plain = type(optimizer) is Sgd
    require(not hooks or plain, "server_optimizer", type(optimizer).__name__, f"{right}; use server_optimizer=sgd")
    require(not hooks or not plain or optimizer.lr == 1, "server_optimizer.lr", optimizer.lr, f"{right}; use 1")
    hooks = _without(algorithm, ("select",), {"select", "selection"})
    require(
        not hooks or type(selection) is Uniform, "selection", type(selection).__name__,
        f"has no effect on {name}, whose select neither calls FedAvg's nor uses self.selection; use selection=uniform",
    )  # fmt: skip
    hooks = _without(algorithm, ("combine", "aggregate"), {"combine", "aggregate", "selection"})
    require(
        not hooks or selection.merge == "examples", "selection.merge", selection.merge,
        f"has no effect on {name}, whose {hooks} neither calls FedAvg's nor uses self.selection.weights; use examples",
    )  # fmt: skip


def _without(algorithm: FedAvg, hooks: tuple[str, ...], names: set[str]) -> str:
    """Which of these hooks a user's class has of its own, joined by "and", if none of `names` is in its code or in that
    of the functions that this calls; otherwise an empty text."""
    classes = _own(type(algorithm))
    defined = [name for name in hooks if any(name in vars(each) for each in classes)]
    # Of a data class's generated methods, such as __eq__, all read every field.
    own = [value for each in classes for name, value in vars(each).items() if not name.startswith("__")]
    read = {name for value in own for name in _names(value, set())}
    return "" if names & read else " and ".join(defined)


def _own(kind: type) -> list[type]:
    """Those of a class and its parents that are not fedexp's."""
    return [each for each in kind.__mro__ if not each.__module__.startswith("fedexp.") and each is not object]


def _names(value: Any, seen: set[Any]) -> Iterator[str]:
    """The names of attributes and global variables that a function's or property's code reads, and that of the
    functions of its own which it calls by such names. seen: code that has been read."""
    function = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
    beside = getattr(function, "__globals__", {})
    todo = [getattr(function, "__code__", None)]
    while todo:
        code = todo.pop()
        if not isinstance(code, CodeType) or code in seen:
            continue
        seen.add(code)
        todo += code.co_consts
        yield from code.co_names
        for name in code.co_names:
            other = beside.get(name)
            if inspect.isfunction(other) and not other.__module__.startswith("fedexp."):
                yield from _names(other, seen)
