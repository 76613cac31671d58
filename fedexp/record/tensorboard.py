"""TensorBoard: every number of metrics.csv by round, in the run's own folder; a failure never ends the run."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fedexp.config.fingerprint import data_used
from fedexp.errors import require
from fedexp.record.tracker import Tracker, leaves


@dataclass
class TensorboardTracker(Tracker):
    """Writes to RUN/tensorboard: `tensorboard --logdir outputs` shows all runs below outputs/, each by its folder.

    Raises ConfigError where the package is not installed.
    """

    def __post_init__(self) -> None:
        found = find_spec("tensorboard") is not None
        require(found, "tracking", "tensorboard", "needs an extra of its own: pip install 'fedexp[tensorboard]'")
        self._writer: Any = None
        self._folder, self._round = Path(), 0
        self._names: dict[str, str] = {}

    def start(self, config: DictConfig, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        groups = ("partition", "model", "algorithm")
        self._names = {"dataset": data_used(config.dataset), **{group: config[group].get("name") for group in groups}}
        self._names |= {"seed": config.seed, "lr": config.local.lr}

    def log(self, row: dict[str, Any]) -> None:
        def write() -> None:
            if self._writer is None:
                self._open(row["round"])
            self._round = row["round"]
            for name, value in row.items():
                if isinstance(value, int | float) and name != "round":
                    self._writer.add_scalar(name, value, self._round)

        self._safely(write)

    def finish(self, result: dict[str, Any], failed: bool) -> None:
        if self._writer is None:
            return

        def end() -> None:
            for path in leaves(self._folder):
                if path.suffix == ".png":
                    self._writer.add_image(path.stem, _pixels(path), self._round, dataformats="HWC")
            named = {key: value for key, value in self._names.items() if value is not None}
            ends = {f"end/{name}": result[name] for name in ("final_accuracy", "best_accuracy") if result.get(name)}
            self._writer.add_hparams(named, ends, run_name=".", global_step=self._round)
            self._writer.close()

        self._safely(end)

    def _open(self, first: int) -> None:
        """Open the writer; in a resumed run, values of rounds from `first` on are discarded."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder / "tensorboard"), purge_step=first)

    def _safely(self, act: Callable[[], None]) -> None:
        """A full disk ends the tracking, not the run."""
        if self._writer is False:
            return
        try:
            act()
        except OSError as error:
            self._writer = False
            print(f"fedexp: tensorboard failed ({error}); the run goes on without it")


def _pixels(path: Path) -> Any:
    import matplotlib.image

    return (matplotlib.image.imread(path)[..., :3] * 255).astype("uint8")
