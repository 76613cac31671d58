"""What the server knows besides its state."""

from dataclasses import dataclass

from torch import Tensor

from fedexp.config.settings import Hardware, Local
from fedexp.engine.engine import Engine
from fedexp.models.classifier import Model
from fedexp.world import World


@dataclass(frozen=True)
class Context:
    """Fixed for a stage. cohort: K, the clients of a round. rounds: communication rounds of the whole run.

    engine: for surveys and for evaluation on clients' data; there while a stage runs.
    """

    model: Model
    world: World
    local: Local
    hardware: Hardware
    cohort: int
    rounds: int
    seed: int
    engine: Engine | None = None

    @property
    def clients(self) -> int:
        """N."""
        return self.world.clients

    @property
    def sizes(self) -> Tensor:
        """n_k of all clients: int64 [N], on the CPU."""
        return self.world.sizes

    @property
    def weights(self) -> list[str]:
        """Names of the entries of a model that are trained; all others are running statistics and the like."""
        return self.model.weights
