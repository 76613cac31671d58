"""Who watches a run besides its folder. Tracking failures never stop training."""

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
        """The end: result.json's content."""
