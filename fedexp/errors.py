"""Errors that are the user's to mend: each names the key, its value and what would be right."""

import difflib
from collections.abc import Iterable
from typing import Any


class ConfigError(ValueError):
    """A setting that cannot work. `key` is its full dotted name, `right` says what would be right."""

    def __init__(self, key: str, value: Any, right: str) -> None:
        super().__init__(key, value, right)
        self.key, self.value, self.right = key, value, right

    def __str__(self) -> str:
        return f"{self.key}={self.value}: {self.right}"


def require(holds: bool, key: str, value: Any, right: str) -> None:
    """Raise ConfigError unless `holds`."""
    if not holds:
        raise ConfigError(key, value, right)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, and all of them where they are few or none is near."""
    known = sorted(set(known))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hints = [f"did you mean {close[0]}?"] if close else []
    if known and (len(known) <= 24 or not close):
        hints.append(f"known: {', '.join(known)}")
    return " ".join(hints) or "there are none"
