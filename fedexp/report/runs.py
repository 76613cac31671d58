"""Runs as their folders tell them."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from omegaconf import OmegaConf

from fedexp.settings import DRAWS, GROUPS, data_used, relevant

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
COMPLETE = ("finished", "diverged")
_WATCHING = ("targets", "evaluate_clients", "measures.")  # measured besides, without effect on what is compared


@dataclass(frozen=True)
class Recorded:
    """A run's folder, read."""

    path: Path
    config: dict[str, Any]
    result: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        return self.path.name.rsplit("-", 1)[-1]

    @property
    def status(self) -> str:
        return self.result.get("status", "started")

    @property
    def complete(self) -> bool:
        return self.status in COMPLETE or not self.information.empty

    @property
    def at_chance(self) -> bool:
        """Whether it ended with a model that knows nothing."""
        return self.complete and bool(self.result.get("at_chance"))

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def data(self) -> str:
        return data_used(self.config["dataset"])

    @property
    def scale(self) -> str | None:
        return (self.config.get("scale") or {}).get("name")

    def name(self, group: str) -> str:
        return str(self.config[group].get("name", self.config[group].get("_target_")))

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """metrics.csv, a row an evaluated round; empty if none was."""
        try:
            return pd.read_csv(self.path / "metrics.csv")
        except (OSError, pd.errors.EmptyDataError):
            return pd.DataFrame({"round": [], "test_accuracy": [], "bytes_total": []})

    @cached_property
    def information(self) -> pd.DataFrame:
        """What a study of features left (information.csv); empty for ordinary runs."""
        try:
            return pd.read_csv(self.path / "information.csv")
        except OSError:
            return pd.DataFrame()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every key that can change the result, dotted."""
        return flat(relevant(OmegaConf.create(self.config)))

    @cached_property
    def trained(self) -> dict[str, Any]:
        """`settings` without what is only measured besides: runs equal in it are the same run twice."""
        return trained(self.settings)

    @property
    def why(self) -> str:
        """Why it is not complete."""
        try:
            lines = (self.path / "error.txt").read_text().strip().splitlines()
        except OSError:
            return self.status
        return f"{self.status}: {lines[-1]}" if lines else self.status


def read(*places: Path) -> list[Recorded]:
    """The run in each folder, or all runs below it, each once. What is no run is said and left out."""
    found: dict[Path, Path] = {}
    for place in places:
        own = place / "config.yaml"
        for path in [own] if own.exists() else sorted(place.glob("*/config.yaml")):
            found.setdefault(path.resolve(), path)
    runs = []
    for path in found.values():
        try:
            config = yaml.load(path.read_text(), Loader=_Loader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            config = None
        if not _is_run(config):
            print(f"fedexp.report: {path.parent} holds no run that this version can read; left out", file=sys.stderr)
            continue
        try:
            result = json.loads((path.parent / "result.json").read_text())
        except (OSError, ValueError):
            result = {}
        runs.append(Recorded(path.parent, config, result if isinstance(result, dict) else {}))
    return runs


def _is_run(config: Any) -> bool:
    """Whether a config has all that a run is compared by (that of another version may not)."""
    groups = (*GROUPS, "hardware", "measures")
    if not isinstance(config, dict) or not all(isinstance(config.get(group), dict) for group in groups):
        return False
    return "seed" in config and "precision" in config["hardware"] and "reference" in config["measures"]


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found


def trained(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that have an effect on what runs are compared in."""
    return {key: value for key, value in settings.items() if not key.startswith(_WATCHING)}


def protocol(trained: Mapping[str, Any], *along: str) -> dict[str, Any]:
    """What all draws of one protocol share; `along`: further keys that may vary within it."""
    return {key: value for key, value in trained.items() if key not in (*DRAWS, *along)}


def distinct(runs: Iterable[Recorded], *apart: str) -> list[Recorded]:
    """Each run once, the first of those that differ in nothing but what was measured besides, and in `apart`."""
    first: dict[str, Recorded] = {}
    for run in runs:
        kept = sorted(pair for pair in run.trained.items() if pair[0] not in apart)
        first.setdefault(repr((run.data, kept)), run)
    return list(first.values())


def differing(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The dotted keys in which settings differ, in the order in which they come."""
    runs = list(runs)
    keys = dict.fromkeys(key for settings in runs for key in settings)
    return [key for key in keys if len({repr(settings.get(key)) for settings in runs}) > 1]
