"""FedDyn (Acar et al., ICLR 2021): a dynamic regulariser makes local optima agree with the global one.

Client k minimises f_k(w) - <g_k, w> + alpha/2 ||w - w^t||^2, then g_k <- g_k - alpha (w_k - w^t), which it keeps to
itself. The server keeps h <- h - alpha/N sum_S (w_k - w^t) and sets w^{t+1} = mean_S(w_k) - h / alpha.

The code published with CADIS uses h <- h - alpha (1/N sum_S w_k - w^t) instead, which is wrong unless every
client takes part: `server_state=published`. Running statistics are averaged uniformly and have no g or h. With a
lossy compression, h follows what the server receives, and is no longer the mean of the clients' g.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg, zeros
from fedexp.config.bounds import Above, OneOf
from fedexp.engine import Batch, Client, Context, State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.server_optimizer.sgd import Sgd
from fedexp.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class FedDyn(FedAvg):
    """alpha weighs the regulariser. server_state: exact or published (module docstring)."""

    alpha: Annotated[float, Above(0)] = 0.5
    server_state: Annotated[str, OneOf("exact", "published")] = "exact"

    own_weights = True  # equal ones, of clients that are drawn once

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        chosen, right = self.server_optimizer, "FedDyn makes the server's step itself, to mean - h / alpha; use"
        require(type(chosen) is Sgd, "server_optimizer", type(chosen).__name__, f"{right} server_optimizer=sgd")
        require(chosen.lr == 1, "server_optimizer.lr", chosen.lr, f"{right} 1")

    def init(self, ctx: Context, params: Params) -> State:
        return {**super().init(ctx, params), "h": zeros(params, ctx)}

    def memory(self, ctx: Context, params: Params) -> Tree:
        return {"gradient": zeros(params, ctx)}

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        weights, own = model.trained(params), client.memory["gradient"]
        linear = torch.stack([(own[name] * weights[name]).sum() for name in weights]).sum()
        proximal = self.alpha / 2 * tree.squared_distance(weights, client.start)
        return super().loss(model, params, batch, client) - linear + proximal

    def remember(self, params: Params, client: Client) -> Tree:
        own = client.memory["gradient"]
        return {"gradient": {name: g - self.alpha * (params[name] - client.start[name]) for name, g in own.items()}}

    def combine(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Params:
        return tree.mean(uploads["update"], torch.ones(len(ids)))

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        averaged = super().aggregate(state, ids, uploads, ctx, gen)
        old, mean, share = state["params"], averaged["params"], len(ids) / ctx.clients
        if self.server_state == "exact":
            step = {name: share * (mean[name] - old[name]) for name in state["h"]}
        else:
            step = {name: share * mean[name] - old[name] for name in state["h"]}
        h = tree.apply(lambda h, d: h - self.alpha * d, state["h"], step)
        return {**averaged, "params": {**mean, **{name: mean[name] - h[name] / self.alpha for name in h}}, "h": h}
