"""FedNTD (Lee et al., NeurIPS 2022, arXiv:2106.03097): distils the global model on the not-true classes.

Adds beta tau^2 KL(q_global || q_local) to cross-entropy, q the softmax of a model's logits / tau over the C - 1 classes
that are not the example's own. The teacher, the global model as received, is in evaluation mode (running statistics,
no dropout). With two classes there is one such class, and nothing to distil.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import Above, AtLeast
from fedexp.engine import Batch, Client
from fedexp.models import Model
from fedexp.tree import Params


@dataclass(frozen=True, kw_only=True)
class FedNTD(FedAvg):
    """beta weighs the distillation; temperature: tau."""

    beta: Annotated[float, AtLeast(0)] = 1.0
    temperature: Annotated[float, Above(0)] = 1.0

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        logits = model(params, batch.x)
        teacher = model(client.start, batch.x, training=False).detach()
        own, received = (
            F.log_softmax(not_true(each, batch.y) / self.temperature, dim=1) for each in (logits, teacher)
        )  # fmt: skip
        divergence = F.kl_div(own, received, reduction="none", log_target=True).sum(1)
        return batch.cross_entropy(logits) + self.beta * self.temperature**2 * batch.mean(divergence)


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """The logits [B, C - 1] of all classes but y [B], in their order."""
    others = torch.arange(logits.shape[1] - 1, device=y.device)
    return logits.gather(1, others + (others >= y[:, None]))
