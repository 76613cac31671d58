"""FedNova (Wang et al., NeurIPS 2020): each client's update is divided by the path length of its local steps.

w <- w + tau_eff sum_k p_k Delta_k / ||a_k||_1, where a_k holds the weight of each of client k's gradients in its
update: ||a_k||_1 is how far the local optimizer moves from x = 0 in S_k steps with gradient 1 (plus mu x for the
proximal term), in units of the learning rate. p_k = n_k / n over the cohort. Running statistics take the plain mean.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedexp import tree
from fedexp.algorithms.fedprox import FedProx
from fedexp.config.bounds import AtLeast, OneOf
from fedexp.engine import Client, Context, State
from fedexp.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class FedNova(FedProx):
    """mu: weight of a proximal term (0: none). tau_eff: path, sum_k p_k ||a_k||_1; or steps, sum_k p_k S_k, as in the
    published code with a proximal term. If all clients take equally many steps, `path` is FedAvg (FedProx, with mu)."""

    mu: Annotated[float, AtLeast(0)] = 0.0
    tau_eff: Annotated[str, OneOf("path", "steps")] = "path"

    needs_sgd = "FedNova's path lengths are defined for sgd"

    def upload(self, params: Params, client: Client) -> Tree:
        return {**super().upload(params, client), "steps": client.steps}

    def combine(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Params:
        share = self.selection.weights(ids, ctx).double()
        share = share / share.sum()
        steps, lr = uploads["steps"].cpu(), ctx.local.rate(state["round"])
        lengths = [path_length(ctx.local.momentum, self.mu, lr, count) for count in steps.tolist()]
        paths = torch.tensor(lengths, dtype=torch.float64)
        effective = (share * (paths if self.tau_eff == "path" else steps)).sum()
        normalised = effective * share / paths
        mean = tree.mean(uploads["update"], share)
        return {
            name: torch.tensordot(normalised.to(change), change, 1) if name in ctx.weights else mean[name]
            for name, change in uploads["update"].items()
        }


def path_length(momentum: float, mu: float, lr: float, steps: int) -> float:
    """||a||_1 of `steps` steps of momentum SGD with a proximal term, at the learning rate of the round."""
    x = speed = 0.0
    for _ in range(steps):
        speed = momentum * speed + 1 + mu * x
        x -= lr * speed
    return -x / lr
