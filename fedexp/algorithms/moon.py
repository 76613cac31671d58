"""MOON (Li et al., "Model-Contrastive Federated Learning", CVPR 2021).

Adds to cross-entropy a contrastive term that draws a client's features to those of the global model and
away from those of the client's own last model. Features are the encoder's output, without the projection
head of MOON's own networks, so that all algorithms train the same model (NIID-Bench's and FedConcat's reading).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
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
class Moon(FedAvg):
    """mu weighs the contrastive term; temperature divides the cosine similarities."""

    mu: float = 5.0
    temperature: float = 0.5

    def __post_init__(self) -> None:
        require(self.mu >= 0, "algorithm.mu", self.mu, "must be at least 0")
        require(self.temperature > 0, "algorithm.temperature", self.temperature, "must be above 0")

    def init(self, world: World, model: Model, params: Params) -> State:
        return {
            **super().init(world, model, params),
            "previous": world.client_memory(params),
            "took_part": torch.zeros(world.clients, dtype=world.dtype, device=world.device),
        }

    def send(self, state: State, ids: Tensor) -> Sent:
        kept = {"previous": state["previous"], "took_part": state["took_part"]}
        return super().send(state, ids)._replace(memory=tree.take(kept, ids))

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        features = model.encode(params, batch.x)
        towards = model.encode(sent.start, batch.x, training=False).detach()
        away = model.encode(sent.memory["previous"], batch.x, training=False).detach()
        attraction = F.cosine_similarity(features, towards) / self.temperature
        repulsion = F.cosine_similarity(features, away) / self.temperature
        # -log(e^a / (e^a + e^r)) = softplus(r - a); a client without a last model has no such term.
        contrast = batch.mean(F.softplus(repulsion - attraction)) * sent.memory["took_part"]
        entropy = batch.mean(F.cross_entropy(model.head(params, features), batch.y, reduction="none"))
        return entropy + self.mu * contrast

    def merge(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> State:
        tree.put(state["previous"], ids, trained.params)
        state["took_part"][ids] = 1
        return super().merge(state, ids, sent, trained)
