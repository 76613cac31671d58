"""Ditto (Li T. et al., ICML 2021, arXiv:2012.04221): beside FedAvg, each client trains a model of its own that is
pulled towards the global one.

The global model is exactly FedAvg's. After its global pass a client takes steps v_k <- v_k - eta_p (grad f_k(v_k) + lam
(v_k - w^t)) over its examples, w^t being the model as received, in batches of this pass's own order; running statistics
are v_k's own and are not pulled. Published code takes the batches of the global pass for v_k: `order=same`.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import Above, AtLeast, OneOf
from fedexp.engine import Batch, Client, Context, Local, Pass
from fedexp.errors import require
from fedexp.models import Model
from fedexp.tree import Params, Tree, squared_distance


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """lam: how strongly a client's model is pulled towards the global one; 0: not at all. personal_epochs, personal_lr:
    of the personal pass; None: those of the global pass. order: of its examples, own or same (module docstring)."""

    lam: Annotated[float, AtLeast(0)] = 1.0
    personal_epochs: Annotated[int | None, AtLeast(1)] = None
    personal_lr: Annotated[float | None, Above(0)] = None
    order: Annotated[str, OneOf("own", "same")] = "own"

    two_models = True

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        lr = self.personal_lr or ctx.local.lr
        require(
            lr * self.lam < 2, "algorithm.lam", self.lam,
            f"must be below {2 / lr:g}, 2 over the learning rate of the personal models, or these move away from w",
        )  # fmt: skip

    def memory(self, ctx: Context, params: Params) -> Tree:
        return {"personal": params}

    def passes(self, local: Local) -> list[Pass]:
        length: dict[str, Any] = {} if self.personal_epochs is None else {"epochs": self.personal_epochs, "steps": None}
        own = replace(local, lr=self.personal_lr or local.lr, **length)
        return [Pass(self, local), Pass(Personal(of=self), own, "/personal" if self.order == "own" else "")]

    def personal(self, download: Tree, memory: Tree, found: Tree) -> Params:
        return memory["personal"]


@dataclass(frozen=True, kw_only=True)
class Personal(FedAvg):
    """ONE client's pass over its own model."""

    of: Ditto

    def start(self, download: Tree, memory: Tree, found: Tree) -> Params:
        return memory["personal"]

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        pull = squared_distance(model.trained(params), client.download["model"])
        return self.of.loss(model, params, batch, client) + self.of.lam / 2 * pull

    def remember(self, params: Params, client: Client) -> Tree:
        return {"personal": params}
