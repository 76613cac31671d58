"""A run that was carried out, as its folder tells it, and its global model ready to predict."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from fedexp.algorithms.fedavg import FedAvg
from fedexp.build import build_algorithm, build_dataset, construct
from fedexp.config.saved import saved
from fedexp.data import Transform
from fedexp.errors import ConfigError, require
from fedexp.models import Model
from fedexp.tree import Params


class GlobalModel(nn.Module):
    """The global model of a run as one module: examples in, logits [n, C] out.

    Examples are given as the data set holds them: images [n, c, h, w] in uint8 from 0 to 255, other features as floats.
    The data set's scaling and normalisation are inside, augmentation is not. Layers evaluate, whatever `train` says.
    """

    def __init__(self, algorithm: FedAvg, model: Model, params: Params, transform: Transform) -> None:
        super().__init__()
        self._algorithm, self._model, self._transform = algorithm, model, transform
        self._names = {name: name.replace(".", ":") for name in params}  # a buffer's name has no dots
        for name, value in params.items():
            self.register_buffer(self._names[name], value)
        self.eval()

    @property
    def params(self) -> Params:
        """The weights by name: those of model.pt."""
        return {name: getattr(self, own) for name, own in self._names.items()}

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        params = self.params
        weight = next(value for value in params.values() if value.is_floating_point())
        x = self._transform(x.to(weight.device), None, weight.dtype)
        return self._algorithm.predict({"params": params}, self._model, x)


@dataclass(frozen=True)
class Run:
    """What a run has left in its folder; each part is read when it is first asked for.

    found: its result after fewer rounds than the folder tells of, where so many were asked for.
    """

    folder: Path
    found: Mapping[str, Any] | None = None

    @cached_property
    def config(self) -> DictConfig:
        """The config that it was carried out with, checked."""
        return saved(self.folder, [])

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """result.json. Raises ConfigError where there is none: the run was killed before its end."""
        if self.found is not None:
            return self.found
        try:
            return json.loads((self.folder / "result.json").read_text())
        except (OSError, ValueError) as error:
            raise ConfigError("folder", self.folder, f"has no result.json that can be read ({error})") from error

    @property
    def accuracy(self) -> float:
        """The final model's accuracy on the global test set, a fraction."""
        return self.result["final_accuracy"]

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """metrics.csv: a row an evaluated round, whose number is the index."""
        return self._rows.loc[: self.result["rounds"]]

    @cached_property
    def _rows(self) -> pd.DataFrame:
        return pd.read_csv(self.folder / "metrics.csv").set_index("round")

    def _refuse_earlier(self) -> None:
        """Raise ConfigError where what is asked for is of more rounds than this result."""
        last, asked = int(self._rows.index[-1]), self.result["rounds"]
        require(last == asked, "rounds", asked, f"{self.folder} has the model of round {last} alone; ask for that one")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """A row a client: how many examples of each class it holds; of those that were evaluated (evaluate.clients),
        the accuracy as well, how many of its examples that speaks for, and the round."""
        held = pd.read_csv(self.folder / "partition.csv", index_col="client")
        evaluated = self.folder / "clients.csv"
        return held.join(pd.read_csv(evaluated, index_col="client")) if evaluated.exists() else held

    @cached_property
    def confusion(self) -> pd.DataFrame:
        """Test examples of each class (rows) taken for each class (columns) by the final model."""
        self._refuse_earlier()
        return pd.read_csv(self.folder / "confusion.csv", index_col="class")

    @cached_property
    def model(self) -> GlobalModel:
        """The final global model, on the CPU, ready to predict: see GlobalModel. The data set is read for its shape."""
        self._refuse_earlier()
        dataset = build_dataset(self.config)
        shape = dataset.transform.shape(tuple(dataset.train_x.shape[1:]))
        with torch.random.fork_rng(devices=[]):
            net = construct(self.config.model, shape=shape, classes=dataset.classes)
        params = torch.load(self.folder / "model.pt", map_location="cpu", weights_only=True)
        dtype = next(value.dtype for value in params.values() if value.is_floating_point())
        return GlobalModel(build_algorithm(self.config), Model(net.to(dtype)), params, dataset.transform)

    def __repr__(self) -> str:
        accuracy = self.result["final_accuracy"]
        came_to = "no accuracy" if accuracy is None else f"accuracy {accuracy:.2%}"
        return f"Run({self.folder}: {self.result['status']}, {self.result['rounds']} rounds, {came_to})"
