"""FedDyn (Acar et al., ICLR 2021): a dynamic regulariser makes local optima agree with the global one.

Client k minimises f_k(w) - <g_k, w> + alpha/2 ||w - w^t||^2, then g_k <- g_k - alpha (w_k - w^t). The server keeps
h <- h - alpha/N sum_S (w_k - w^t) and sets w^{t+1} = mean_S(w_k) - h / alpha.

The code published with CADIS uses h <- h - alpha (1/N sum_S w_k - w^t) instead, which is wrong unless every
client takes part: `server_state=published`. Running statistics are averaged uniformly and have no g or h.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Batch, Sent, Trained
from fedexp.engine.client import OneClient
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.tree import Params
from fedexp.world import World


@dataclass
class FedDyn(FedAvg):
    """alpha weighs the regulariser. server_state: exact or published (module docstring)."""

    alpha: float = 0.5
    server_state: str = "exact"

    def __post_init__(self) -> None:
        require(self.alpha > 0, "algorithm.alpha", self.alpha, "must be above 0")
        require(
            self.server_state in ("exact", "published"), "algorithm.server_state", self.server_state,
            "must be exact or published",
        )  # fmt: skip

    def init(self, world: World, model: Model, params: Params) -> State:
        zero = {name: torch.zeros_like(params[name]) for name in model.weights}
        return {**super().init(world, model, params), "h": zero, "client_gradients": world.client_memory(zero)}

    def send(self, state: State, ids: Tensor) -> Sent:
        kept = {"gradient": tree.take(state["client_gradients"], ids)}
        return super().send(state, ids)._replace(memory=kept)

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        weights = {name: params[name] for name in model.weights}
        kept = sent.memory["gradient"]
        linear = torch.stack([(kept[name] * weights[name]).sum() for name in weights]).sum()
        proximal = self.alpha / 2 * tree.squared_distance(weights, sent.start)
        return super().loss(model, params, batch, sent) - linear + proximal

    def merge(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> State:
        clients = len(next(iter(state["client_gradients"].values())))
        mean = tree.mean(trained.params, torch.ones(len(ids)))
        moved = {name: trained.params[name] - sent.start[name] for name in state["h"]}
        kept = tree.apply(lambda g, gap: g - self.alpha * gap, sent.memory["gradient"], moved)
        tree.put(state["client_gradients"], ids, kept)
        if self.server_state == "exact":
            step = {name: gap.sum(0) / clients for name, gap in moved.items()}
        else:
            step = {name: trained.params[name].sum(0) / clients - state["params"][name] for name in moved}
        h = tree.apply(lambda old, change: old - self.alpha * change, state["h"], step)
        params = {name: value - h[name] / self.alpha if name in h else value for name, value in mean.items()}
        return {**state, "params": params, "h": h}
