"""Bounds of settings, declared beside the field: `lr: Annotated[float, Above(0)] = 0.1`.

A number must be finite as well wherever a bound is given. None is accepted where the type says so.
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_args, get_type_hints

from fedexp.errors import ConfigError, require


class Bound:
    """A condition on one value. `words`: the condition as an error states it after "must be"."""

    @property
    def words(self) -> str:
        raise TypeError("a subclass of Bound must define words")

    def holds(self, value: Any) -> bool:
        raise TypeError("a subclass of Bound must define holds")


@dataclass(frozen=True)
class Within(Bound):
    """From `low` to `high`; an open end is itself excluded."""

    low: float
    high: float
    open_below: bool = False
    open_above: bool = False

    @property
    def words(self) -> str:
        if self.high == math.inf:
            return f"{'above' if self.open_below else 'at least'} {self.low:g}"
        if not (self.open_below or self.open_above):
            return f"from {self.low:g} to {self.high:,.12g}"
        return f"in {'(' if self.open_below else '['}{self.low:g}, {self.high:g}{')' if self.open_above else ']'}"

    def holds(self, value: Any) -> bool:
        above = value > self.low if self.open_below else value >= self.low
        return above and (value < self.high if self.open_above else value <= self.high)


def AtLeast(least: float) -> Within:
    return Within(least, math.inf)


def Above(limit: float) -> Within:
    return Within(limit, math.inf, open_below=True)


@dataclass(frozen=True)
class OneOf(Bound):
    choices: tuple[Any, ...]

    def __init__(self, *choices: Any) -> None:
        object.__setattr__(self, "choices", choices)

    @property
    def words(self) -> str:
        return f"one of {', '.join(map(str, self.choices))}"

    def holds(self, value: Any) -> bool:
        return value in self.choices


def check_values(target: Any, values: Mapping[str, Any], group: str) -> None:
    """Raise ConfigError for the first of `values` that breaks a bound declared by `target`'s fields or parameters.

    The key that the error names is GROUP.NAME, or NAME alone where the group is empty.
    """
    for name, bounds in declared(target).items():
        value = values.get(name)
        if value is None:
            continue
        key = f"{group}.{name}".lstrip(".")
        require(not isinstance(value, float) or math.isfinite(value), key, value, "must be finite")
        for bound in bounds:
            or_null = ", or null" if type(None) in get_args(hints(target)[name]) else ""
            require(_holds(bound, value), key, value, f"must be {bound.words}{or_null}")


def check_fields(settings: Any, group: str) -> None:
    """The same for the fields of a dataclass instance."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    check_values(type(settings), values, group)


def declared(target: Any) -> dict[str, list[Bound]]:
    """The bounds of each field of a class, or of each parameter of a function."""
    found = {}
    for name, hint in hints(target, include_extras=True).items():
        bounds = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Bound)]
        if bounds:
            found[name] = bounds
    return found


def _holds(bound: Bound, value: Any) -> bool:
    try:
        return bound.holds(value)
    except TypeError:  # a value of another type: a word instead of a number
        return False


@cache
def hints(target: Any, include_extras: bool = False) -> dict[str, Any]:
    """The types of a function's parameters, or of those of a class's constructor; their bounds are the extras. Raises
    ConfigError for a type that cannot be found where the program runs."""
    annotated = target.__init__ if inspect.isclass(target) else target
    try:
        found = get_type_hints(annotated, include_extras=include_extras)
    except (NameError, AttributeError, SyntaxError) as error:
        right = f"has a parameter whose type cannot be found ({error}); import it where the program runs, too"
        raise ConfigError("", f"{target.__module__}.{target.__qualname__}", right) from error
    return {name: hint for name, hint in found.items() if name != "return"}
