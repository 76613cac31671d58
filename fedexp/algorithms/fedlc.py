"""FedLC (Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022).

While client k trains, tau n_kc^(-1/4) is subtracted from the logit of each class c: the more, the fewer examples of
the class the client holds. The softmax runs over all classes; without the label's own class, as the paper writes it,
training collapses (reported by other implementations).
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import AtLeast
from fedexp.engine import Batch, Client, Examples
from fedexp.models import Model
from fedexp.tree import Params, Tree

_NO_EXAMPLES = 1e-8  # stands for n = 0: an offset of -100 tau, nearly the class's removal (FL-bench's constant)


@dataclass(frozen=True, kw_only=True)
class FedLC(FedAvg):
    """tau scales the calibration."""

    tau: Annotated[float, AtLeast(0)] = 1.0

    def inspect(self, model: Model, download: Tree, memory: Tree, examples: Examples) -> Tree:
        counts = examples.label_counts.to(examples.world.dtype)
        return {"margin": self.tau * counts.clamp_min(_NO_EXAMPLES) ** -0.25}

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        logits = model(params, batch.x) - client.found["margin"]
        return batch.cross_entropy(logits)
