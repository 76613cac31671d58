"""FedSAM (Qu et al., ICML 2022, arXiv:2206.02618): local steps by sharpness-aware minimisation (SAM).

On each batch: g = grad f(w), e = r g / ||g|| over all weights jointly, then a step from w along grad f(w + e). Momentum
and weight decay act on the step alone. Both passes drop the same activations and use the statistics of the batch;
running statistics follow the second pass. The local loss that is reported is f(w + e). A step costs two of FedAvg's.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import AtLeast
from fedexp.engine import Batch, Client, gradient
from fedexp.models import Model
from fedexp.tree import Params

_LEAST = 1e-12  # added to the norm, in case the gradient is 0


@dataclass(frozen=True, kw_only=True)
class FedSAM(FedAvg):
    """radius: r, the distance uphill at which the gradient is taken; 0: no first pass, which is FedAvg."""

    radius: Annotated[float, AtLeast(0)] = 0.05

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        plain = super().loss
        if self.radius == 0:
            return plain(model, params, batch, client)
        weights = {name: params[name] for name in model.weights}
        grads, *_ = gradient(lambda here: plain(model, {**params, **here}, batch, client), weights)
        norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
        uphill = {name: weights[name] + self.radius / (norm + _LEAST) * grad for name, grad in grads.items()}
        return plain(model, {**params, **uphill}, batch, client)
