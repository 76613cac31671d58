"""Trackers, which follow a run besides its folder.

Your own is a subclass of Tracker, named on the command line: `tracking=own tracking._target_=mine.Mine`.
It is built before training (raise ConfigError for a key that cannot work), and its functions are called in the order
below. An error that it raises later ends the run like any other, unless the function is marked `@harmless`.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from omegaconf import DictConfig


class Tracker:
    """Tracks nothing: `tracking=none`, and the base class of all trackers."""

    active = True  # False where nothing is to be tracked: functions that are marked `@harmless` do nothing then

    def start(self, config: DictConfig, folder: Path, fingerprint: str) -> None:
        """Begin tracking, or go on with a resumed run."""

    def picture(self, name: str, path: Path) -> None:
        """Show a picture file."""

    def log(self, row: dict[str, Any]) -> None:
        """One evaluated round: a row of metrics.csv."""

    def finish(self, result: dict[str, Any], failed: bool) -> None:
        """End tracking. result: the content of result.json. All files of the run's folder are written by then."""


def harmless(act: Callable[..., None]) -> Callable[..., None]:
    """Marks a tracker's function: a failure is reported, and ends the tracking, not the run."""

    @wraps(act)
    def tried(self: Tracker, *given: Any, **named: Any) -> None:
        if not self.active:
            return
        try:
            act(self, *given, **named)
        except Exception as error:
            self.active = False
            name = act.__module__.rpartition(".")[2]
            print(f"fedexp: {name} failed at {act.__name__} ({error}); the run goes on without it")

    return tried


def leaves(folder: Path) -> list[Path]:
    """A run's pictures and tables, without metrics.csv."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".png", ".csv") and path.name != "metrics.csv")
