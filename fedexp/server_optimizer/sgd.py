"""The plain server step w + lr D along the cohort's mean update D, and the interface of all server optimizers."""

from dataclasses import dataclass
from typing import Annotated

from fedexp import tree
from fedexp.config.bounds import Above, check_fields
from fedexp.config.frozen import Frozen
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class Sgd(Frozen):
    """lr: the server's learning rate; 1: FedAvg.

    This step is for trained entries only; running statistics always become the clients' mean.
    """

    lr: Annotated[float, Above(0)] = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "server_optimizer")

    def init(self, params: Params) -> Tree:
        """The optimizer's memory before the first round. params: the trained entries of the model."""
        return {}

    def step(self, params: Params, update: Params, memory: Tree, lr: float) -> tuple[Params, Tree]:
        """The stepped entries and the new memory. lr: the clients' learning rate in this round."""
        return tree.apply(lambda w, d: w + self.lr * d, params, update), memory
