"""MOON (Li et al., "Model-Contrastive Federated Learning", CVPR 2021).

Adds to cross-entropy a contrastive term that pulls a client's features towards those of the global model and
pushes them away from those of the client's own last model. Features are the encoder's output, without the projection
head of MOON's own networks, so that all algorithms train the same model (NIID-Bench's and FedConcat's reading).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import Above, AtLeast
from fedexp.engine import Batch, Client, Context
from fedexp.models import Model
from fedexp.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Moon(FedAvg):
    """mu weighs the contrastive term; temperature divides the cosine similarities."""

    mu: Annotated[float, AtLeast(0)] = 5.0
    temperature: Annotated[float, Above(0)] = 0.5

    needs_head = True

    def memory(self, ctx: Context, params: Params) -> Tree:
        return {"previous": params, "took_part": torch.zeros((), dtype=ctx.world.dtype, device=ctx.world.device)}

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        features = model.encode(params, batch.x)
        towards = model.encode(client.start, batch.x, training=False).detach()
        away = model.encode(client.memory["previous"], batch.x, training=False).detach()
        attraction = F.cosine_similarity(features, towards) / self.temperature
        repulsion = F.cosine_similarity(features, away) / self.temperature
        # -log(e^a / (e^a + e^r)) = softplus(r - a); a client without a last model has no such term.
        contrast = batch.mean(F.softplus(repulsion - attraction)) * client.memory["took_part"]
        entropy = batch.cross_entropy(model.head(params, features))
        return entropy + self.mu * contrast

    def remember(self, params: Params, client: Client) -> Tree:
        return {"previous": params, "took_part": torch.ones_like(client.memory["took_part"])}
