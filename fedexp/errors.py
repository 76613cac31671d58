"""Errors that end a program with one line instead of a traceback; each has the program's exit code."""

import difflib
import signal
from collections.abc import Iterable
from typing import Any

_LONGEST = 200  # characters of a value that a message repeats


class ConfigError(ValueError):
    """A setting that cannot work. `key` is its full dotted name, or empty where `value` is a word that was
    given without one, such as a folder; both are empty where nothing was given. `right` says what would be right."""

    exit_code = 2

    def __init__(self, key: str, value: Any, right: str) -> None:
        super().__init__(key, value, right)
        self.key, self.value, self.right = key, value, right

    def __str__(self) -> str:
        given = f"{self.key}={shown(self.value)}: " if self.key else f"{shown(self.value)}: ".removeprefix(": ")
        return given + " ".join(str(self.right).split())


class Busy(RuntimeError):
    """Another process is at work in the run's folder."""

    exit_code = 75


class Unsaved(RuntimeError):
    """A run was carried out, but files of it could not be written."""

    exit_code = 1


class WorkerDied(RuntimeError):
    """Worker processes were killed again and again, or none can be started."""

    exit_code = 1


class Incomplete(Exception):
    """Some runs of a sweep failed; they have been listed."""

    exit_code = 1


class Interrupted(Exception):
    """Training was asked to stop; the last finished round's state stays valid. Its argument: the signal's number."""

    @property
    def exit_code(self) -> int:
        return 128 + (self.args[0] if self.args else signal.SIGINT)

    def __str__(self) -> str:
        return "interrupted; the same command goes on from here"


class ProcessLost(Interrupted):
    """One of a run's several processes has ended, which ends all of them."""

    exit_code = 1

    def __str__(self) -> str:
        return "another process of this run has ended; the same command goes on from where it was saved"


def shown(value: Any) -> str:
    """A value as a one-line message shows it: as it would be typed, in full unless it is very long, without line
    breaks."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}... ({len(text)} characters)"
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def require(holds: bool, key: str, value: Any, right: str) -> None:
    """Raise ConfigError unless `holds`."""
    if not holds:
        raise ConfigError(key, value, right)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known name, and all known names if these are few or none is near."""
    known = sorted(set(known))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hints = [f"did you mean {close[0]}?"] if close else []
    if known and (len(known) <= 24 or not close):
        hints.append(f"known: {', '.join(known)}")
    return " ".join(hints) or "there are none here"
