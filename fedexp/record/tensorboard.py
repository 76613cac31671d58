"""TensorBoard: every number of metrics.csv by round, in the run's own folder; a failure never ends the run."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fedexp.config.fingerprint import data_used
from fedexp.errors import require
from fedexp.record.tracker import Tracker, harmless, leaves


@dataclass
class TensorboardTracker(Tracker):
    """Writes to RUN/tensorboard: `tensorboard --logdir outputs` shows all runs below outputs/, each by its folder.

    Raises ConfigError where the package is not installed.
    """

    def __post_init__(self) -> None:
        found = find_spec("tensorboard") is not None
        require(found, "tracking", "tensorboard", "needs an extra of its own: pip install 'fedexp[tensorboard]'")
        self._writer: Any = None

    def start(self, config: DictConfig, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        groups = ("partition", "model", "algorithm")
        names = {group: config[group].get("name") for group in groups}
        self._names = {"dataset": data_used(config.dataset), **names, "seed": config.seed, "lr": config.local.lr}

    @harmless
    def log(self, row: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._round = row["round"]
        if self._writer is None:  # in a resumed run, values of rounds from this one on are discarded
            self._writer = SummaryWriter(str(self._folder / "tensorboard"), purge_step=self._round)
        for name, value in row.items():
            if isinstance(value, int | float) and name != "round":
                self._writer.add_scalar(name, value, self._round)

    @harmless
    def finish(self, result: dict[str, Any], failed: bool) -> None:
        if self._writer is None:
            return
        from matplotlib.image import imread

        for path in leaves(self._folder):
            if path.suffix == ".png":
                self._writer.add_image(path.stem, imread(path)[..., :3], self._round, dataformats="HWC")
        named = {key: value for key, value in self._names.items() if value is not None}
        ends = {name: result.get(name) for name in ("final_accuracy", "best_accuracy")}
        ends = {f"end/{name}": value for name, value in ends.items() if value is not None}
        self._writer.add_hparams(named, ends, run_name=".", global_step=self._round)
        self._writer.close()
