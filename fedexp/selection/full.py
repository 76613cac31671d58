"""Full participation: all clients take part in every round."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fedexp.engine import Context
from fedexp.errors import require
from fedexp.selection.uniform import Uniform
from fedexp.tree import Tree


@dataclass(frozen=True)
class Full(Uniform):
    """Clients 0 to N - 1, in this order."""

    @property
    def sampling(self) -> str | None:
        return "fixed" if type(self).select is Full.select else None

    def check(self, ctx: Context) -> None:
        require(
            ctx.cohort == ctx.clients, "clients_per_round", ctx.cohort,
            f"selection=full takes all clients; use clients_per_round={ctx.clients}",
        )  # fmt: skip

    def select(self, memory: Tree, ctx: Context, gen: Generator) -> Tensor:
        return torch.arange(ctx.clients)
