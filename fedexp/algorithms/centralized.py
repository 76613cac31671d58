"""Centralized training (the papers' SingleSet, Zhao et al.'s SGD): all clients' data in one place.

A round is `local.epochs` epochs over the pooled data (or `local.steps` batches of it), so that a curve
over rounds stands beside a federated one. Nothing is communicated.
"""

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Sent
from fedexp.engine.exchange import State
from fedexp.world import World


@dataclass
class Centralized(FedAvg):
    """The only client of its world holds the union of all clients' examples."""

    def adapt(self, world: World) -> World:
        return replace(world, sizes=torch.tensor([len(world.rows)]))

    def select(self, state: State, world: World, gen: Generator) -> Tensor:
        return torch.tensor([0])

    def send(self, state: State, ids: Tensor) -> Sent:
        return super().send(state, ids)._replace(travels=False)
