"""A run as reports see it: its config, its result and its curve; and how the settings of runs are compared."""

import csv
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedexp.config.fingerprint import DRAWS, data_used, effective
from fedexp.config.schema import flat
from fedexp.record.result import ends, first_rounds, read_rows
from fedexp.record.status import DONE, Status

log = logging.getLogger(__name__)

ABSENT = "(absent)"  # stands for the value of a key that a run does not have
_CURVE = (
    "round", "test_accuracy", "bytes_total", "seconds", "simulated_seconds", "client_accuracy_mean",
    "client_accuracy_worst10",
)  # fmt: skip
LOST = "its metrics.csv cannot be read"  # why a run is not complete, although its result.json says so
_STUDY_FILE = "information.csv"
_STUDY_COLUMNS = ["table", "data", "algorithm", "classification_loss", "reconstruction_loss", "commit"]
# Keys of what is measured, without effect on the results by which runs are compared.
WATCHING = ("targets", "evaluate.clients", "evaluate.on", "measures.", "reference", "reference_rounds")


class Settings(dict[str, Any]):
    """Dotted keys with their values, defaults included. given: the keys that differ from their defaults; it may hold
    keys that are left out here."""

    def __init__(self, values: Mapping[str, Any], given: Iterable[str]) -> None:
        super().__init__(values)
        self.given = frozenset(given)

    def without(self, *keys: str) -> "Settings":
        """The same settings without these keys; GROUP. stands for all keys of a group."""
        groups = tuple(key for key in keys if key.endswith("."))
        kept = {key: value for key, value in self.items() if key not in keys and not key.startswith(groups)}
        return Settings(kept, self.given)

    def within(self, group: str) -> "Settings":
        """The keys of a group alone."""
        return Settings({key: value for key, value in self.items() if key.startswith(f"{group}.")}, self.given)


@dataclass(frozen=True)
class Recorded:
    """A run, read from its folder. rounds: the number of rounds after which it is read; missing: why the folder has no
    result after that many."""

    path: Path
    config: dict[str, Any]
    result: dict[str, Any]
    rounds: int
    missing: str = ""

    def at(self, rounds: int) -> "Recorded":
        """The same run after `rounds` rounds, as one that ended with them."""
        if self.status not in DONE or self.missing == LOST:
            return self
        done = self.result.get("rounds", 0)
        if done > rounds:
            rows = read_rows(self.path)
            if rounds in ends(rows):
                result = first_rounds(rounds, rows, self.result, self.config.get("targets") or [])
                return replace(self, rounds=rounds, result=result)
            return replace(self, rounds=rounds, missing=f"was not evaluated after round {rounds}, of its {done}")
        short = done < rounds and self.status == Status.FINISHED
        return replace(self, rounds=rounds, missing=f"has {done} of {rounds} rounds" if short else "")

    @property
    def fingerprint(self) -> str:
        return self.path.name.rsplit("-", 1)[-1]

    @property
    def status(self) -> str:
        return self.result.get("status", Status.STARTED)

    @property
    def complete(self) -> bool:
        return not self.missing and self.status in DONE

    @property
    def commit(self) -> str | None:
        """The commit that made it; None where that is not known."""
        if not self.is_study:
            return self.result.get("commit")
        return next((commit for commit in self.information.get("commit", ()) if isinstance(commit, str)), None)

    @property
    def is_study(self) -> bool:
        """Whether the folder is that of `fedexp study` alone: no run has been there."""
        return not self.result and (self.path / _STUDY_FILE).exists()

    @property
    def diverged(self) -> bool:
        return self.complete and self.status == Status.DIVERGED

    @property
    def at_chance(self) -> bool:
        """Whether the run ended with the accuracy of chance."""
        return self.complete and bool(self.result.get("at_chance"))

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def watched(self) -> list[str]:
        """What was measured besides the defaults, as text."""
        keys = [key for key in self.settings.keys() - self.trained.keys() if key in self.settings.given]
        return sorted(said(key, self.settings[key]) for key in keys if self.settings[key] is not None)

    @property
    def data(self) -> str:
        return data_used(self.config["dataset"])

    @property
    def scale(self) -> str | None:
        return (self.config.get("scale") or {}).get("name")

    def is_of(self, study: bool) -> bool:
        """Whether it can stand in a table of studies, or else in one of runs."""
        return not self.information.empty if study else not self.is_study

    def name(self, group: str) -> str:
        return str(self.config[group].get("name", self.config[group].get("_target_")))

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """metrics.csv: one row per evaluated round; empty if none was evaluated, or if it cannot be read."""
        kinds = {"round": int, "test_accuracy": float}
        try:
            table = pd.read_csv(self.path / "metrics.csv", float_precision="round_trip", dtype=kinds)
            return table[table["round"] <= self.rounds]
        except (OSError, ValueError, KeyError):
            return pd.DataFrame({name: [] for name in kinds})

    @cached_property
    def curve(self) -> dict[str, np.ndarray]:
        """The columns of metrics.csv that reports need, read fast enough for thousands of runs; empty without rows."""
        try:
            with (self.path / "metrics.csv").open(newline="") as file:
                header, *rows = [row for row in csv.reader(file) if row] or [[]]
            columns = {name: values for name, *values in zip_longest(header, *rows, fillvalue="")}
            rounds = [float(value) for value in columns["round"]] if rows else []
            kept = [number for number, value in enumerate(rounds) if value <= self.rounds]
            names = [name for name in _CURVE if kept and name in columns]
            found = {name: np.array([float(columns[name][number] or "nan") for number in kept]) for name in names}
            damaged = np.isnan(found.get("test_accuracy", np.zeros(1))).any()
            return {} if damaged else found
        except (OSError, ValueError, KeyError, csv.Error):
            return {}

    @cached_property
    def information(self) -> pd.DataFrame:
        """What `fedexp study` found with the same config (information.csv). Empty if there is no such file, or, with a
        warning, if it cannot be read."""
        path = self.path / _STUDY_FILE
        if not path.exists():
            return pd.DataFrame()
        try:
            return pd.read_csv(path, dtype={"commit": str})[_STUDY_COLUMNS]
        except (OSError, ValueError, KeyError):
            log.warning("%s is left out: it is not as fedexp study writes it, with %s", path, ", ".join(_STUDY_COLUMNS))
            return pd.DataFrame()

    @cached_property
    def settings(self) -> Settings:
        """All settings that can change the result."""
        return settings(self.config, self.rounds)

    @cached_property
    def trained(self) -> Settings:
        """`settings` without keys of what is only measured: runs with equal ones are the same run twice."""
        return trained(self.settings)

    @property
    def why(self) -> str:
        """Why the run is not complete."""
        if self.missing:
            return self.missing
        try:
            lines = (self.path / "error.txt").read_text().strip().splitlines()
        except OSError:
            return self.status
        return f"{self.status}: {lines[0]}" if lines else self.status


def settings(config: Mapping[str, Any], rounds: int) -> Settings:
    """All settings that can change the result of a plain config's run of `rounds` rounds."""
    every, given = (flat(each) for each in effective(config))
    return Settings({**every, "rounds": rounds}, [*given, "rounds"])


def trained(settings: Settings) -> Settings:
    """The settings that affect the results by which runs are compared."""
    return settings.without(*WATCHING)


def protocol(trained: Settings, *along: str) -> Settings:
    """The settings that all draws of one protocol share. along: further keys that may vary within it."""
    return trained.without(*DRAWS, *along)


def distinct(runs: Iterable[Recorded], *apart: str) -> list[Recorded]:
    """Each run once: the first of those that differ only in what was measured, and in the keys `apart`."""
    first: dict[str, Recorded] = {}
    for run in runs:
        first.setdefault(repr((run.data, sorted(run.trained.without(*apart).items()))), run)
    return list(first.values())


def differing(runs: Iterable[Settings]) -> list[str]:
    """The dotted keys in which settings differ, in order of appearance. Keys that have their default in all settings
    are left out: they differ only together with their constructors."""
    runs = list(runs)
    given = {key for settings in runs for key in settings.given}
    keys = [key for key in dict.fromkeys(key for settings in runs for key in settings) if key in given]
    return [key for key in keys if len({repr(settings.get(key, ABSENT)) for settings in runs}) > 1]


def said(key: str, value: Any) -> str:
    """A setting as text."""
    return f"{key.removesuffix('._target_')}={shown(value)}"


def shown(value: Any) -> str:
    """A setting's value as in YAML; a constructor of fedexp is shown by its name alone."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = str(value)
    if isinstance(value, str) and re.fullmatch(r"[\[{].*|null|true|false|[-+.\d][\d.eE+-]*", text):
        return repr(text)  # otherwise it would read as the number, or null, that another run has
    return text.rpartition(".")[2] if text.startswith("fedexp.") else text
