"""FeSEM (Long et al., "Multi-center Federated Learning", World Wide Web 2023).

Clients start in random groups of equal size; later each belongs to the centre nearest to its last local
weights (squared Euclidean distance), trains from it and is pulled towards it by a proximal term. The server keeps the
last weights that it received from each client.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.clustered import Clustered
from fedexp.algorithms.fedprox import FedProx
from fedexp.config.bounds import AtLeast
from fedexp.engine import Context, State, client_rows
from fedexp.randomness import generator
from fedexp.tree import Params, Tree

_AT_ONCE = 50  # clients whose last weights are compared together


@dataclass(frozen=True, kw_only=True)
class FeSEM(Clustered, FedProx):
    """mu weighs the proximal term, which is FedProx's. State also has "last", the weights that clients returned last
    (client_rows)."""

    mu: Annotated[float, AtLeast(0)] = 0.1

    def init(self, ctx: Context, params: Params) -> State:
        assigned = torch.empty(ctx.clients, dtype=torch.int64)
        order = torch.randperm(ctx.clients, generator=generator(ctx.seed, "groups"))
        assigned[order] = torch.arange(ctx.clients) % self.clusters
        last = client_rows.new(ctx.model.trained(params), ctx.clients, ctx.world.memory_device)
        return {**super().init(ctx, params), "assigned": assigned, "last": last}

    def choices(self, state: State, ids: Tensor, ctx: Context) -> Tensor:
        """The nearest centres; a client that never took part stays in its first group."""
        chosen, centers = state["assigned"][ids], tree.unstack(state["params"])
        known = client_rows.held(state["last"], ids).nonzero().flatten()
        for start in range(0, len(known), _AT_ONCE):
            some = known[start : start + _AT_ONCE]
            last = tree.unstack(tree.to(client_rows.take(state["last"], ids[some]), ctx.world.device))
            distance = [torch.stack([tree.squared_distance(own, center) for center in centers]) for own in last]
            chosen[some] = torch.stack(distance).argmin(1).cpu()
        return chosen

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        after = super().aggregate(state, ids, uploads, ctx, gen)
        starts = tree.take(state["params"], after["assigned"][ids])
        returned = {name: starts[name] + uploads["update"][name] for name in ctx.weights}
        return {**after, "last": client_rows.put(state["last"], ids, returned)}
