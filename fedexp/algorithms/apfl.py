"""APFL (Deng, Kamani and Mahdavi 2020, arXiv:2003.13461): each client mixes a model of its own with the global one.

On each batch two steps are taken from the same values: w_k steps as under FedAvg, and v_k <- v_k - eta a grad f(u) with
the mixture u = a v_k + (1 - a) w_k of all weights. `adaptive` also moves a <- clip(a - eta <v_k - w_k, grad f(u)>, 0,
1), computed before the step. Running statistics are not mixed: u uses those of v_k, which follow the forward passes of
u. Momentum, weight decay and clipping treat v_k as a model by itself. As its personal model a client uses u with the
newest w. The published code mixes logits instead of weights, which is the same for linear models only.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import OneOf, Within
from fedexp.engine import Batch, Client, Context, gradient
from fedexp.models import Model
from fedexp.models.layers import keep
from fedexp.tree import Params, Tree

_OWN = "own/"  # prefix of the names of v_k's entries; no module's name can contain it
_A = "/mixing"  # the name of a


@dataclass(frozen=True, kw_only=True)
class APFL(FedAvg):
    """mixing: the initial a of every client. adaptive: when a moves: never, at each round's first step (round) or at
    every step (step)."""

    mixing: Annotated[float, Within(0, 1)] = 0.5
    adaptive: Annotated[str, OneOf("never", "round", "step")] = "never"

    needs_sgd = "under Adam's steps the factor a of the own model's gradient would be lost"
    two_models = True

    def memory(self, ctx: Context, params: Params) -> Tree:
        return {
            "weights": ctx.model.trained(params),
            "statistics": {name: leaf for name, leaf in params.items() if name not in ctx.weights},
            "mixing": torch.tensor(self.mixing, dtype=ctx.world.dtype, device=ctx.world.device),
        }

    def start(self, download: Tree, memory: Tree, found: Tree) -> Params:
        own = {**memory["weights"], **memory["statistics"]}
        return {**download["model"], **{_OWN + name: leaf for name, leaf in own.items()}, _A: memory["mixing"]}

    def trains(self, model: Model) -> list[str]:
        return [*model.weights, *(_OWN + name for name in model.weights)]

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        plain, a = super().loss, params[_A]
        w = {name: params[name] for name in client.download["model"]}
        v = {name: params[_OWN + name] for name in w}
        fixed = {name: (v[name].detach(), w[name].detach()) for name in model.weights}
        mixed = {name: a * own + (1 - a) * other for name, (own, other) in fixed.items()}
        grads, _, statistics = gradient(lambda u: plain(model, {**v, **u}, batch, client), mixed)
        keep({_OWN + name: value for name, value in statistics.items()})
        if self.adaptive != "never":
            along = torch.stack([((own - other) * grads[name]).sum() for name, (own, other) in fixed.items()]).sum()
            moved = (a - client.lr * along).clamp(0, 1)
            keep({_A: moved if self.adaptive == "step" else torch.where(batch.key == client.key, moved, a)})
        # This term's value is 0, and its gradient with respect to v is a grad f(u).
        pull = torch.stack([((v[name] - own) * a * grads[name]).sum() for name, (own, _) in fixed.items()]).sum()
        return plain(model, w, batch, client) + pull

    def remember(self, params: Params, client: Client) -> Tree:
        own = {kind: client.memory[kind] for kind in ("weights", "statistics")}
        kept = {kind: {name: params[_OWN + name] for name in names} for kind, names in own.items()}
        return {**kept, "mixing": params[_A]}

    def personal(self, download: Tree, memory: Tree, found: Tree) -> Params:
        a = memory["mixing"]
        mixed = {name: a * own + (1 - a) * download["model"][name] for name, own in memory["weights"].items()}
        return {**memory["statistics"], **mixed}
