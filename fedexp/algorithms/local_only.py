"""Local training only, for comparison: every client trains a model of its own and exchanges nothing.

A client that is drawn for a round trains as under FedAvg, but continues its own model: with K of N clients in a round,
training costs as much as FedAvg's. There is no global model; where one is evaluated, it is the initial model.
"""

from dataclasses import dataclass

from fedexp.algorithms.partially_shared import PartiallyShared
from fedexp.engine import Context
from fedexp.errors import require
from fedexp.models import Model


@dataclass(frozen=True, kw_only=True)
class LocalOnly(PartiallyShared):
    """All entries stay with the client."""

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        why = "has nothing to work on where clients exchange nothing"
        self.check_standard(why, "server_optimizer", "compression", "privacy")
        require(
            self.selection.sampling is not None, "selection", type(self.selection).__name__,
            "depends on what clients send, and they send nothing; use selection=uniform, full or poisson",
        )  # fmt: skip
        require(
            self.selection.merge == "examples", "selection.merge", self.selection.merge,
            "has nothing to weigh where clients exchange nothing; use examples",
        )  # fmt: skip

    def private(self, model: Model) -> set[str]:
        return set(model.params())
