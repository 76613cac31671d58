"""FedLC (Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022).

While client k trains, tau n_kc^(-1/4) is taken from the logit of each class c, the more the fewer examples of
it the client holds. The softmax runs over all classes: leaving out the label's own, as the paper writes,
collapses (reported by other implementations).
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

_NO_EXAMPLES = 1e-8  # stands for n = 0: an offset of -100 tau, nearly the class's removal (FL-bench's constant)


@dataclass
class FedLC(FedAvg):
    """tau scales the calibration."""

    tau: float = 1.0

    def __post_init__(self) -> None:
        require(self.tau >= 0, "algorithm.tau", self.tau, "must be at least 0")

    def init(self, world: World, model: Model, params: Params) -> State:
        counts = world.label_counts.to(world.device, world.dtype)
        margins = self.tau * counts.clamp_min(_NO_EXAMPLES) ** -0.25
        return {**super().init(world, model, params), "margins": margins}

    def send(self, state: State, ids: Tensor) -> Sent:
        return super().send(state, ids)._replace(memory={"margin": state["margins"][ids]})

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        logits = model(params, batch.x) - sent.memory["margin"]
        return batch.mean(F.cross_entropy(logits, batch.y, reduction="none"))
