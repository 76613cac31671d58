"""FedAvgM (Hsu, Qi, Brown 2019): momentum at the server."""

from dataclasses import dataclass
from typing import Annotated

import torch

from fedexp import tree
from fedexp.config.bounds import Within
from fedexp.server_optimizer.sgd import Sgd
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class Momentum(Sgd):
    """v <- beta v + D; w <- w + lr v, the heavy ball, or with `nesterov` w <- w + lr (D + beta v).

    With beta 0 and lr 1 it is FedAvg.
    """

    beta: Annotated[float, Within(0, 1, open_above=True)] = 0.9
    nesterov: bool = False

    def init(self, params: Params) -> Tree:
        return {"v": tree.apply(torch.zeros_like, params)}

    def step(self, params: Params, update: Params, memory: Tree, lr: float) -> tuple[Params, Tree]:
        v = tree.apply(lambda v, d: self.beta * v + d, memory["v"], update)
        along = tree.apply(lambda v, d: d + self.beta * v, v, update) if self.nesterov else v
        return tree.apply(lambda w, d: w + self.lr * d, params, along), {"v": v}
