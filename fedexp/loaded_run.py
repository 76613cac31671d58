"""A run's results, read from its folder: what `fedexp.run`, `fedexp.sweep` and `fedexp.load` return."""

import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from omegaconf import DictConfig

from fedexp.building import build_algorithm, build_transform, construct
from fedexp.config.saved import saved
from fedexp.engine.torch_settings import of_a_fresh_process
from fedexp.errors import ConfigError, require
from fedexp.global_model import GlobalModel
from fedexp.models import Model
from fedexp.randomness import seeded
from fedexp.record.status import DONE
from fedexp.report.page import plural

# What reading a file of a run may raise where the file is missing, damaged or another one.
_UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, EOFError, StopIteration,
    pickle.UnpicklingError,
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run's results in its folder; each part is read when it is first used, and raises ConfigError where its file is
    missing or damaged. found: the result, where the run was asked for fewer rounds than the folder holds."""

    folder: Path
    found: Mapping[str, Any] | None = field(default=None, hash=False)  # a dict has no hash

    @cached_property
    def config(self) -> DictConfig:
        """The config of the run, checked."""
        return saved(self.folder, [])

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """result.json. Raises ConfigError where there is none: the run was killed before its end."""
        if self.found is not None:
            return self.found
        with self._reading("result.json") as file:
            result = json.loads(file.read_text())
            lacking = [name for name in ("status", "rounds", "final_accuracy") if name not in result]
            if lacking:
                raise ValueError(f"it lacks {', '.join(lacking)}")
        return result

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        """Within this context a file of the folder is read; any error means that it is missing or damaged, and becomes
        a ConfigError that names it."""
        try:
            yield self.folder / name
        except _UNREADABLE as error:
            # What torch says of a damaged file is long, and advises to run code from it.
            why = error if isinstance(error, OSError | ValueError) else type(error).__name__
            raise ConfigError("folder", self.folder, f"has no {name} that can be read ({why})") from error

    @property
    def accuracy(self) -> float | None:
        """The final model's accuracy on the global test set, a fraction; None if no round was evaluated."""
        return self.result["final_accuracy"]

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """metrics.csv: one row per evaluated round, indexed by the round's number."""
        return self._rows.loc[: self.result["rounds"]]

    @cached_property
    def _rows(self) -> pd.DataFrame:
        with self._reading("metrics.csv") as file:
            rows = pd.read_csv(file, float_precision="round_trip", index_col="round")
            rows.index = rows.index.astype("int64")
            if rows.empty:
                raise ValueError("it has no rows")
            if not rows.index.is_unique:
                raise ValueError("a round occurs twice")
        return rows

    def _refuse_earlier(self) -> None:
        """Raise ConfigError where the folder's model is of another round than this result. A model is written when its
        run has ended; one that was then carried on, and interrupted, still has the earlier model."""
        held, asked = Run(self.folder).result, self.result["rounds"]
        status, last = held["status"], held["rounds"]
        right = f"has no model of round {last}, after which it was {status}; the run's own command carries it on"
        require(status in DONE, "folder", self.folder, right)
        require(last == asked, "rounds", asked, f"{self.folder} has only the model of round {last}; ask for that one")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per client: how many examples of each class it holds; for clients that were evaluated
        (evaluate.clients), also the accuracy, how many examples it stands for, and the round."""
        with self._reading("partition.csv") as file:
            held = pd.read_csv(file, index_col="client")
        with self._reading("clients.csv") as file:
            return held.join(pd.read_csv(file, index_col="client")) if file.exists() else held

    @cached_property
    def confusion(self) -> pd.DataFrame:
        """How many test examples of each class (rows) the final model assigns to each class (columns). Raises
        ConfigError where the folder has the model of another round than this result."""
        self._refuse_earlier()
        with self._reading("confusion.csv") as file:
            return pd.read_csv(file, index_col="class")

    @cached_property
    @of_a_fresh_process()
    def model(self) -> GlobalModel:
        """The final global model, on the CPU, ready to predict: see GlobalModel. The data set is not needed. Raises
        ConfigError where the folder has the model of another round than this result."""
        self._refuse_earlier()
        with self._reading("model.pt") as file:
            params = torch.load(file, map_location="cpu", weights_only=True)
            dtype = next(value.dtype for value in params.values() if value.is_floating_point())
        right = "is of an earlier version of fedexp, whose result.json does not tell the shape of examples"
        require("examples" in self.result, "folder", self.folder, f"{right}; delete it, and run its command again")
        with self._reading("result.json"):
            examples = self.result["examples"]
            stored, classes, tokens = tuple(examples["shape"]), examples["classes"], examples["tokens"]
        transform = build_transform(self.config)
        with seeded(0, held=True):  # its first weights are not used
            net = construct(self.config.model, shape=transform.shape(stored), classes=classes)
        algorithm, model = build_algorithm(self.config), Model(net.to(dtype))
        return GlobalModel(algorithm, model, params, transform, stored, tokens)

    def __repr__(self) -> str:
        try:
            result = self.result
        except ConfigError as error:  # of a run that is still going, too: a notebook shows what `load` returns
            return f"Run({self.folder}: {error.right})"
        came_to = "no accuracy" if self.accuracy is None else f"accuracy {self.accuracy:.2%}"
        return f"Run({self.folder}: {result['status']}, {plural(result['rounds'], 'round')}, {came_to})"
