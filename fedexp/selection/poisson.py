"""Poisson sampling, as accountants of differential privacy assume: each client independently with probability K / N."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fedexp.engine import Context
from fedexp.selection.uniform import Uniform
from fedexp.tree import Tree


@dataclass(frozen=True)
class Poisson(Uniform):
    """clients_per_round, K, is the expected size of a cohort, which may have any size, even 0. Client ids ascend."""

    @property
    def sampling(self) -> str | None:
        return "poisson" if type(self).select is Poisson.select else None

    def select(self, memory: Tree, ctx: Context, gen: Generator) -> Tensor:
        drawn = torch.rand(ctx.clients, generator=gen, dtype=torch.float64) < ctx.cohort / ctx.clients
        return drawn.nonzero().squeeze(1)
