"""FedPer (Arivazhagan et al. 2019, arXiv:1912.00818): the head, the last linear layer, stays with each client.

Head and body train jointly; the body is averaged.
"""

from dataclasses import dataclass
from typing import Annotated

from fedexp.algorithms.partially_shared import PartiallyShared
from fedexp.config.bounds import OneOf
from fedexp.engine import Context
from fedexp.errors import require
from fedexp.models import Model


@dataclass(frozen=True, kw_only=True)
class FedPer(PartiallyShared):
    """normalisation: shared (batch normalisation is averaged with the body, its statistics included) or local (it stays
    with each client, as under FedBN)."""

    normalisation: Annotated[str, OneOf("shared", "local")] = "shared"

    needs_head = True

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        require(
            bool(self.body(ctx.model)), "model", type(ctx.model.net).__name__,
            f"{type(self).__name__} shares what is below the head, and this encoder has no weights",
        )  # fmt: skip

    def is_head(self, name: str) -> bool:
        """Whether an entry of the model belongs to the head."""
        return name.startswith("head.")

    def body(self, model: Model) -> list[str]:
        """Names of the trained entries below the head."""
        return [name for name in model.weights if not self.is_head(name)]

    def private(self, model: Model) -> set[str]:
        head = {name for name in model.params() if self.is_head(name)}
        return head | set(model.normalisation) if self.normalisation == "local" else head
