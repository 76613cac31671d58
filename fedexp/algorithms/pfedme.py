"""pFedMe (Dinh, Tran and Nguyen, NeurIPS 2020, arXiv:2006.08848): personal models by Moreau envelopes.

On each batch theta approaches the minimiser of f(theta) + lam/2 ||theta - w_k||^2 by some gradient steps of learning
rate eta_p; then w_k <- w_k - eta lam (w_k - theta), eta the clients' learning rate. The number of batches R is
local.steps (or those of local.epochs), and the server's beta is server_optimizer.lr. A client's own model is its last
theta, which begins each round at w. Running statistics follow each batch's last inner step, and w_k and theta share
them. The local loss that is reported is f at the last inner step plus the proximal term.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import Above, AtLeast
from fedexp.engine import Batch, Client, Context, gradient
from fedexp.errors import require
from fedexp.models import Model
from fedexp.models.layers import keep
from fedexp.tree import Params, Tree, squared_distance

_THETA = "theta/"  # prefix of the names of theta's entries; no module's name can contain it


@dataclass(frozen=True, kw_only=True)
class PFedMe(FedAvg):
    """inner_steps: steps of theta on each batch. personal_lr: eta_p, the same in all rounds. mu: weight decay of theta,
    found in the published code only. warm_start: whether theta continues from batch to batch within a round, or begins
    at w_k on each batch."""

    lam: Annotated[float, Above(0)] = 15.0
    inner_steps: Annotated[int, AtLeast(1)] = 5
    personal_lr: Annotated[float, Above(0)] = 0.1
    mu: Annotated[float, AtLeast(0)] = 0.0
    warm_start: bool = True

    two_models = True

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        for name, plain in (("optimizer", "sgd"), ("momentum", 0), ("weight_decay", 0)):
            value = getattr(ctx.local, name)
            require(
                value == plain, f"local.{name}", value,
                f"pFedMe's steps are plain gradient steps; use local.{name}={plain}",
            )  # fmt: skip
        require(
            ctx.local.lr * self.lam < 1, "local.lr", ctx.local.lr,
            f"times algorithm.lam={self.lam:g} must be below 1, or each step leads beyond theta; the paper has 0.005",
        )  # fmt: skip

    def memory(self, ctx: Context, params: Params) -> Tree:
        return {
            "weights": ctx.model.trained(params),
            "statistics": {name: leaf for name, leaf in params.items() if name not in ctx.weights},
        }

    def start(self, download: Tree, memory: Tree, found: Tree) -> Params:
        received = download["model"]
        return {**received, **{_THETA + name: received[name] for name in memory["weights"]}}

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        """The Moreau envelope, whose gradient is lam (w_k - theta)."""
        plain, w = super().loss, {name: params[name] for name in client.download["model"]}
        anchor = {name: w[name].detach() for name in model.weights}
        theta = {name: params[_THETA + name] for name in anchor} if self.warm_start else anchor
        for _ in range(self.inner_steps):
            grads, value, statistics = gradient(lambda here: plain(model, {**w, **here}, batch, client), theta)
            theta = {
                name: here - self.personal_lr * (grads[name] + self.lam * (here - anchor[name]) + self.mu * here)
                for name, here in theta.items()
            }
        keep({**statistics, **{_THETA + name: here for name, here in theta.items()}})
        return value + self.lam / 2 * squared_distance({name: w[name] for name in theta}, theta)

    def remember(self, params: Params, client: Client) -> Tree:
        return {
            "weights": {name: params[_THETA + name] for name in client.memory["weights"]},
            "statistics": {name: params[name] for name in client.memory["statistics"]},
        }

    def personal(self, download: Tree, memory: Tree, found: Tree) -> Params:
        return {**memory["statistics"], **memory["weights"]}
