"""FedRS (Li and Zhan, "Federated Learning with Restricted Softmax", KDD 2021).

While a client trains, the logits of classes that it does not hold are scaled down, so that it hardly moves
their weights. Only the product of weights and features is scaled, the head's bias is not; inference is unscaled.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Batch, Sent
from fedexp.engine.client import OneClient
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.tree import Params
from fedexp.world import World


@dataclass
class FedRS(FedAvg):
    """alpha: the scale of a missing class. scaling: missing (as in the paper), or proportional, the published
    code's alpha + (1 - alpha) p_c / max p, which scales the classes that a client does hold as well."""

    alpha: float = 0.5
    scaling: str = "missing"

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "algorithm.alpha", self.alpha, "must be in [0, 1]")
        known = ("missing", "proportional")
        require(self.scaling in known, "algorithm.scaling", self.scaling, "must be missing or proportional")

    def init(self, world: World, model: Model, params: Params) -> State:
        counts = world.label_counts.to(world.device, world.dtype)
        part = (counts > 0).to(counts) if self.scaling == "missing" else counts / counts.amax(1, keepdim=True)
        scales = self.alpha + (1 - self.alpha) * part
        return {**super().init(world, model, params), "scales": scales}

    def send(self, state: State, ids: Tensor) -> Sent:
        return super().send(state, ids)._replace(memory={"scale": state["scales"][ids]})

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        features = model.encode(params, batch.x)
        held_back = F.linear(features, params["head.weight"]) * (1 - sent.memory["scale"])
        logits = model.head(params, features) - held_back
        return batch.mean(F.cross_entropy(logits, batch.y, reduction="none"))
