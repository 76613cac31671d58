"""FedRep (Collins et al., ICML 2021, arXiv:2102.07078): each round a client trains its own head, then the shared body.

First E_h epochs of the head on the frozen body, then the round's own epochs (or steps) of the body under the frozen
head, each with an optimizer of its own. Frozen weights are neither decayed nor moved by old momentum, and running
statistics belong to the body. The published code ends with all clients training the head alone: `tuning_epochs=[10]`.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated

from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedavg_ft import FedAvgFT
from fedexp.algorithms.fedper import FedPer
from fedexp.config.bounds import AtLeast, OneOf
from fedexp.engine import Batch, Client, Local, Pass
from fedexp.models import Model
from fedexp.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer, FedAvgFT):
    """head_epochs: E_h; 0: the head never trains."""

    head_epochs: Annotated[int, AtLeast(0)] = 10
    tuning_epochs: list[int] = field(default_factory=list)
    tuning_layers: Annotated[str, OneOf("all", "head", "body")] = "head"

    def passes(self, local: Local) -> list[Pass]:
        body = Pass(self, local)
        if self.head_epochs == 0:
            return [body]
        return [Pass(Head(of=self), replace(local, epochs=self.head_epochs, steps=None), "/head"), body]

    def trains(self, model: Model) -> list[str]:
        return self.body(model)


@dataclass(frozen=True, kw_only=True)
class Head(FedAvg):
    """ONE client's training of its head, which is all that it remembers of this pass."""

    of: FedRep

    def trains(self, model: Model) -> list[str]:
        return [name for name in model.weights if self.of.is_head(name)]

    def start(self, download: Tree, memory: Tree, found: Tree) -> Params:
        return self.of.start(download, memory, found)

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        return self.of.loss(model, params, batch, client)

    def remember(self, params: Params, client: Client) -> Tree:
        own = client.memory["private"]
        return {"private": {name: params[name] if self.of.is_head(name) else own[name] for name in own}}
