"""FedFA's server momentum (Huang et al., "Fairness and accuracy in horizontal federated learning").

m <- gamma m + (1 - gamma) D, w <- w + lr D + sign eta m with the clients' learning rate eta of the round and the
server's lr, which is 1 in FedFA. The sign is -1 in the published code; the paper's is unverified. In the published code
clients use the same momentum gamma: set local.momentum to it.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from fedexp import tree
from fedexp.config.bounds import OneOf, Within
from fedexp.server_optimizer.sgd import Sgd
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class FedFAMomentum(Sgd):
    """The step of Sgd plus `sign` eta m; sign 0: no momentum, which is FedAvg if the server's lr is 1."""

    gamma: Annotated[float, Within(0, 1, open_above=True)] = 0.0
    sign: Annotated[int, OneOf(-1, 0, 1)] = -1

    def init(self, params: Params) -> Tree:
        return {"m": tree.apply(torch.zeros_like, params)}

    def step(self, params: Params, update: Params, memory: Tree, lr: float) -> tuple[Params, Tree]:
        m = tree.apply(lambda m, d: self.gamma * m + (1 - self.gamma) * d, memory["m"], update)
        return tree.apply(lambda w, d, m: w + self.lr * d + self.sign * lr * m, params, update, m), {"m": m}
