"""FedProx (Li et al., MLSys 2020): FedAvg with mu/2 ||w - w_global||^2 added to the local loss."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import AtLeast
from fedexp.engine import Batch, Client
from fedexp.models import Model
from fedexp.tree import Params, squared_distance


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """mu weighs the proximal term over the trained weights (running statistics are no part of it)."""

    mu: Annotated[float, AtLeast(0)] = 0.01

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        pull = squared_distance(model.trained(params), client.start)
        return super().loss(model, params, batch, client) + self.mu / 2 * pull
