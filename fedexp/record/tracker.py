"""Who watches a run besides its folder.

One's own is a subclass of Tracker, named on the command line: `tracking=own tracking._target_=mine.Mine`.
It is built before training (raise ConfigError for a key that cannot work) and called in the order below; what it raises
later ends the run, as an error anywhere does, so it catches what may fail on the way, as those here do.
"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig


class Tracker:
    """Watches nothing: `tracking=none`, and the base class of those that do."""

    def start(self, config: DictConfig, folder: Path, fingerprint: str) -> None:
        """Begin or, for a resumed run, go on."""

    def picture(self, name: str, path: Path) -> None:
        """Show a picture file."""

    def log(self, row: dict[str, Any]) -> None:
        """One evaluated round: a row of metrics.csv."""

    def finish(self, result: dict[str, Any], failed: bool) -> None:
        """The end: result.json's content. All files of the run's folder are written by then."""


def leaves(folder: Path) -> list[Path]:
    """What a run has left besides its rows and its model: pictures and tables."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".png", ".csv") and path.name != "metrics.csv")
