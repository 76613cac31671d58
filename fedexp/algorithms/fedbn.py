"""FedBN (Li et al., ICLR 2021): batch normalisation stays with each client, its affine weights and its statistics.

With a model that has no batch normalisation it is FedAvg.
"""

import logging
from dataclasses import dataclass

from fedexp.algorithms.partially_shared import PartiallyShared
from fedexp.engine import Context
from fedexp.models import Model

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FedBN(PartiallyShared):
    """All other entries are averaged by n_k (the original: uniformly, with all clients in every round)."""

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        if not ctx.model.normalisation:
            log.warning("this model has no batch normalisation, so that FedBN is FedAvg; choose, say, model=resnet9")

    def private(self, model: Model) -> set[str]:
        return set(model.normalisation)
