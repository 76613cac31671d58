"""IFCA (Ghosh et al., "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020).

Each participant gets all K models, takes the one with the smallest mean loss on its own examples and trains it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedexp import tree
from fedexp.algorithms.clustered import Clustered, distinct, losses
from fedexp.engine import Engine
from fedexp.engine.exchange import State
from fedexp.models import Model
from fedexp.tree import Params
from fedexp.world import World


@dataclass
class Ifca(Clustered):
    """identical_start: all models from one start, as in FedConcat's published code, where all ties of the
    first round go to the first model; otherwise they start differently, as the method needs."""

    identical_start: bool = False

    def init(self, world: World, model: Model, params: Params) -> State:
        state = super().init(world, model, params)
        return state if self.identical_start else {**state, "params": distinct(params, self.clusters)}

    def choices(self, state: State, ids: Tensor, engine: Engine) -> Tensor:
        best = [losses(state["params"], client, engine).mean(1).argmin().cpu() for client in ids.tolist()]
        return torch.stack(best)

    def assign(self, state: State, ids: Tensor, engine: Engine) -> State:
        assigned = state["assigned"].clone()
        assigned[ids] = self.choices(state, ids, engine)
        if self.clusters > 1:
            # `send` counts the model that is trained; here are the other K - 1 (any of them: all are one size).
            engine.exchange(ids, down=tree.spread(tree.take(state["params"], slice(1, None)), len(ids)))
        return {**state, "assigned": assigned}
