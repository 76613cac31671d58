"""FedRS (Li and Zhan, "Federated Learning with Restricted Softmax", KDD 2021).

While a client trains, the logits of classes that it does not hold are scaled down, so that it hardly moves
their weights. Only the product of weights and features is scaled, not the head's bias; inference is unscaled.
"""

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import OneOf, Within
from fedexp.engine import Batch, Client, Examples
from fedexp.models import Model
from fedexp.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class FedRS(FedAvg):
    """alpha: the scale of a missing class. scaling: missing (as in the paper), or proportional, the published
    code's alpha + (1 - alpha) p_c / max p, which scales the classes that a client does hold as well."""

    alpha: Annotated[float, Within(0, 1)] = 0.5
    scaling: Annotated[str, OneOf("missing", "proportional")] = "missing"

    needs_head = True

    def inspect(self, model: Model, download: Tree, memory: Tree, examples: Examples) -> Tree:
        counts = examples.label_counts.to(examples.world.dtype)
        part = (counts > 0).to(counts) if self.scaling == "missing" else counts / counts.max()
        return {"scale": self.alpha + (1 - self.alpha) * part}

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        features = model.encode(params, batch.x)
        held_back = F.linear(features, params["head.weight"]) * (1 - client.found["scale"])
        logits = model.head(params, features) - held_back
        return batch.cross_entropy(logits)
