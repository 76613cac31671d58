"""FedExP (Jhunjhunwala, Wang and Joshi, ICLR 2023, arXiv:2301.09604): the server steps further where updates disagree.

w <- w + eta_g D with D = sum_k p_k Delta_k and eta_g = max(1, sum_k p_k ||Delta_k||^2 / (2 (||D||^2 + epsilon))), norms
over all trained weights; running statistics take the plain mean. As the iterates oscillate, the mean of the last two is
evaluated, is what a client uses, and becomes model.pt; clients train from the last one. The published code adds
K epsilon instead, decayed by the square of the learning rate's decay: `epsilon_scale=published`.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import AtLeast, OneOf
from fedexp.engine import Context, State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.privacy.none import NoPrivacy
from fedexp.tree import Params, Stack, Tree


@dataclass(frozen=True, kw_only=True)
class FedExP(FedAvg):
    """largest: bound of eta_g; None: no bound; 1: FedAvg's steps. evaluated: mean2, the mean of the last two iterates
    (after round 1, of the initial model and the first iterate; a round that no client answers makes none), or last.
    State also has "previous", the iterate before the last one, and "extrapolation", the last eta_g."""

    epsilon: Annotated[float, AtLeast(0)] = 1e-3
    epsilon_scale: Annotated[str, OneOf("plain", "published")] = "plain"
    largest: Annotated[float | None, AtLeast(1)] = None
    evaluated: Annotated[str, OneOf("mean2", "last")] = "mean2"

    def check(self, ctx: Context) -> None:
        require(
            type(self.privacy) is NoPrivacy, "privacy", type(self.privacy).__name__,
            "does not cover the norms of single updates, which FedExP's step depends on; use privacy=none",
        )  # fmt: skip
        super().check(ctx)

    def init(self, ctx: Context, params: Params) -> State:
        one = torch.ones((), dtype=torch.float64, device=ctx.world.device)
        return {**super().init(ctx, params), "previous": params, "extrapolation": one}

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        update = uploads["update"]
        weights = ctx.model.trained(update)
        decayed = ctx.local.rate(state["round"]) / ctx.local.lr
        further = self.extrapolation(weights, self.selection.weights(ids, ctx), decayed)
        scaled = {name: further.to(change) * change for name, change in weights.items()}
        after = super().aggregate(state, ids, {**uploads, "update": {**update, **scaled}}, ctx, gen)
        return {**after, "previous": state["params"], "extrapolation": further}

    def extrapolation(self, updates: Stack, weights: Tensor, decayed: float) -> Tensor:
        """eta_g of a cohort's updates [K, ...], weighted by `weights` [K]: float64 []. decayed: the clients' learning
        rate as a fraction of the first round's."""
        share = (weights.double() / weights.sum()).to(next(iter(updates.values())).device)
        mean = each = torch.zeros((), dtype=torch.float64, device=share.device)
        for (part,) in tree.columns(updates):
            mean = mean + (share @ part).square().sum()
            each = each + share @ part.square().sum(1)
        epsilon = self.epsilon * (len(share) * decayed**2 if self.epsilon_scale == "published" else 1)
        return (each / (2 * (mean + epsilon))).nan_to_num(nan=1.0).clamp(1, self.largest)  # 0 / 0: nobody has moved

    def predict(self, state: State, model: Model, x: Tensor) -> Tensor:
        return model(self._used(state), x, training=False)

    def final(self, state: State) -> Params:
        return self._used(state)

    def personal_download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        return super().personal_download({**state, "params": self._used(state)}, ids, ctx)

    def _used(self, state: State) -> Params:
        """The model that is evaluated, as `evaluated` says. A State read from model.pt has this model alone."""
        last, before = state["params"], state.get("previous", state["params"])
        return tree.mean(tree.stack([last, before]), torch.ones(2)) if self.evaluated == "mean2" else last

    def metrics(self, state: State, ctx: Context) -> dict[str, float]:
        return {"extrapolation": float(state["extrapolation"])}
