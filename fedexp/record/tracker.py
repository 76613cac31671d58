"""Trackers, which follow a run besides its folder.

Your own is a subclass of Tracker, named on the command line: `tracking=own tracking._target_=mine.Mine`.
It is built before training (raise ConfigError for a key that cannot work), and its functions are called in the order
below. An error that it raises later ends the run like any other; so catch what may fail, as the trackers here do.
"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig


class Tracker:
    """Tracks nothing: `tracking=none`, and the base class of all trackers."""

    def start(self, config: DictConfig, folder: Path, fingerprint: str) -> None:
        """Begin tracking, or go on with a resumed run."""

    def picture(self, name: str, path: Path) -> None:
        """Show a picture file."""

    def log(self, row: dict[str, Any]) -> None:
        """One evaluated round: a row of metrics.csv."""

    def finish(self, result: dict[str, Any], failed: bool) -> None:
        """End tracking. result: the content of result.json. All files of the run's folder are written by then."""


def leaves(folder: Path) -> list[Path]:
    """A run's pictures and tables, without metrics.csv."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".png", ".csv") and path.name != "metrics.csv")
