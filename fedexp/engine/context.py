"""What the server knows besides its state."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from fedexp.config.settings import Hardware, Local
from fedexp.engine.engine import Engine
from fedexp.models.classifier import Model
from fedexp.world import World


@dataclass(frozen=True)
class Context:
    """Fixed for a stage. cohort: K, the number of clients in a round. rounds: communication rounds of the whole run.

    engine: for surveys and for evaluation on clients' data; None unless a stage is running.
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
        """N, the number of clients."""
        return self.world.clients

    @property
    def sizes(self) -> Tensor:
        """n_k of all clients: int64 [N], on the CPU."""
        return self.world.sizes

    @property
    def weights(self) -> list[str]:
        """Names of the model's entries that are trained; all other entries are buffers, such as running statistics."""
        return self.model.weights

    def ready(self, stopped: Callable[[], bool] = lambda: False) -> "Context":
        """The same context with an engine of its own, to train with; the caller must close that engine in the end.

        stopped: whether training is to end before the round does (Interrupted).
        """
        engine = Engine(self.model, self.world, self.local, self.hardware, self.seed, stopped)
        return replace(self, engine=engine)
