"""FedProx (Li et al., MLSys 2020): FedAvg with mu/2 ||w - w_global||^2 added to the local loss."""

from dataclasses import dataclass

from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Batch
from fedexp.engine.client import OneClient
from fedexp.errors import require
from fedexp.models import Model
from fedexp.tree import Params, squared_distance


@dataclass
class FedProx(FedAvg):
    """mu weighs the proximal term over the trained weights (running statistics are no part of it)."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        require(self.mu >= 0, "algorithm.mu", self.mu, "must be at least 0")

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        weights = {name: params[name] for name in model.weights}
        return super().loss(model, params, batch, sent) + self.mu / 2 * squared_distance(weights, sent.start)
