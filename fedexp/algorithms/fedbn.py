"""FedBN (Li et al., ICLR 2021): batch normalisation stays with each client, its affine weights and its statistics.

With a model that has no batch normalisation it is FedAvg.
"""

from dataclasses import dataclass

from fedexp.algorithms.partially_shared import PartiallyShared
from fedexp.models import Model


@dataclass(frozen=True, kw_only=True)
class FedBN(PartiallyShared):
    """All other entries are averaged by n_k (the original: uniformly, with all clients in every round)."""

    def private(self, model: Model) -> set[str]:
        return set(model.normalisation)
