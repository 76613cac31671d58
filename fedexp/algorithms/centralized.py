"""Centralized training (the papers' SingleSet, Zhao et al.'s SGD): all clients' data in one place.

A round is `local.epochs` epochs over the pooled data (or `local.steps` batches of it), so that a curve
over rounds can be compared with a federated one. Nothing is communicated.
"""

from dataclasses import dataclass, replace

import torch

from fedexp.algorithms.fedavg import FedAvg, Stage
from fedexp.engine import Context
from fedexp.errors import require
from fedexp.selection.full import Full
from fedexp.selection.uniform import Uniform
from fedexp.world import World


@dataclass(frozen=True, kw_only=True)
class Centralized(FedAvg):
    """The only client of its world holds the union of all clients' examples."""

    communicates = False

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        why = "has nothing to work on where all data are in one place"
        self.check_standard(why, "server_optimizer", "compression")
        require(
            type(self.selection) in (Uniform, Full), "selection", type(self.selection).__name__,
            "has no clients to draw from where all data are in one place; use selection=uniform or full",
        )  # fmt: skip
        require(
            self.selection.merge == "examples", "selection.merge", self.selection.merge,
            "has nothing to weigh where all data are in one place; use examples",
        )  # fmt: skip

    def stages(self, ctx: Context) -> list[Stage]:
        return [Stage("training", self, replace(ctx, world=pooled(ctx.world), cohort=1))]


def pooled(world: World) -> World:
    """The world in which one client holds the union of all clients' examples."""
    return replace(world, sizes=torch.tensor([len(world.rows)]))
