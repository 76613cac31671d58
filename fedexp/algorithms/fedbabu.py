"""FedBABU (Oh, Kim and Yun, ICLR 2022, arXiv:2106.06042): the body is trained and averaged, the head stays as it began.

All clients have the same random head, which follows from the seed and never crosses the network; its weights are
neither stepped nor decayed. A client fine-tunes the whole model, head included, before it uses it. The global model
that is evaluated is the body with the initial head.
"""

from dataclasses import dataclass, field

from fedexp.algorithms.fedavg_ft import FedAvgFT
from fedexp.algorithms.fedper import FedPer
from fedexp.models import Model


@dataclass(frozen=True, kw_only=True)
class FedBABU(FedPer, FedAvgFT):
    """Fine-tuning is FedAvgFT's."""

    tuning_epochs: list[int] = field(default_factory=lambda: [5])

    def trains(self, model: Model) -> list[str]:
        return self.body(model)
