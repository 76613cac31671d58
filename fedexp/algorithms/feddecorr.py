"""FedDecorr (Shi et al., ICLR 2023, arXiv:2210.00226): features that vary independently of one another.

Adds beta L to cross-entropy. With Z the B x d features that the head reads, each standardised over the batch (unbiased
variance, epsilon inside the root), the published code's L is the mean squared off-diagonal entry of Z'Z, divided by B:
(B - 1)^2 / B times the mean squared correlation. The paper's L is ||Corr(Z)||_F^2 / d^2, which has a constant diagonal
and is about 62 times smaller at B = 64: `scale=paper`. The paper's beta belongs to the published code's L.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import AtLeast, OneOf
from fedexp.engine import Batch, Client
from fedexp.models import Model
from fedexp.tree import Params

_EPSILON = 1e-8  # added to the variance, so that a constant feature correlates with no other


@dataclass(frozen=True, kw_only=True)
class FedDecorr(FedAvg):
    """beta weighs L. scale: published or paper (module docstring). smallest_batch: smaller batches are trained without
    L, because features of two examples always correlate perfectly."""

    beta: Annotated[float, AtLeast(0)] = 0.1
    scale: Annotated[str, OneOf("published", "paper")] = "published"
    smallest_batch: Annotated[int, AtLeast(1)] = 8

    needs_head = True

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        features = model.encode(params, batch.x)
        entropy = batch.cross_entropy(model.head(params, features))
        return entropy + self.beta * self.correlation(features, batch.weight)

    def correlation(self, features: Tensor, weight: Tensor) -> Tensor:
        """L of features [B, d]; examples whose weight [B] is 0 are padding and do not count."""
        real, d = (weight > 0).to(features)[:, None], features.shape[1]
        count = real.sum()
        centred = (features - (features * real).sum(0) / count) * real
        variance = centred.square().sum(0) / (count - 1).clamp_min(1)
        z = centred / (variance + _EPSILON).sqrt()
        product = z.T @ z
        if self.scale == "paper":
            found = (product / (count - 1).clamp_min(1)).square().sum() / d**2
        else:
            others = 1 - torch.eye(d, dtype=product.dtype, device=product.device)
            found = (product * others).square().sum() / max(1, d * (d - 1)) / count
        return found * (count >= self.smallest_batch)
