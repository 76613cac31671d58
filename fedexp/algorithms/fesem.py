"""FeSEM (Long et al., "Multi-center Federated Learning", World Wide Web 2023).

Clients start in random groups of equal size; later each belongs to the centre nearest to its last local
weights (squared Euclidean distance), trains from it and is drawn to it by a proximal term.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedexp import tree
from fedexp.algorithms.clustered import Clustered
from fedexp.engine import Batch, Engine, Sent, Trained
from fedexp.engine.client import OneClient
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.randomness import generator
from fedexp.tree import Params
from fedexp.world import World


@dataclass
class FeSEM(Clustered):
    """mu weighs the proximal term."""

    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mu >= 0, "algorithm.mu", self.mu, "must be at least 0")

    def init(self, world: World, model: Model, params: Params) -> State:
        weights = {name: params[name] for name in model.weights}
        return {
            **super().init(world, model, params),
            "last": world.client_memory(weights),
            "took_part": torch.zeros(world.clients, dtype=torch.bool),
        }

    def assign(self, state: State, ids: Tensor, engine: Engine) -> State:
        assigned = state["assigned"].clone()
        if state["round"] == 0:
            order = torch.randperm(len(assigned), generator=generator(engine.seed, "groups"))
            assigned[order] = torch.arange(len(assigned)) % self.clusters
        else:
            assigned[ids] = self.choices(state, ids, engine)
        return {**state, "assigned": assigned}

    def choices(self, state: State, ids: Tensor, engine: Engine) -> Tensor:
        """The nearest centres; who never took part stays in its first group."""
        chosen = state["assigned"][ids]
        for place in state["took_part"][ids].nonzero().flatten().tolist():
            own = tree.to(tree.take(state["last"], int(ids[place])), engine.world.device)
            distance = torch.stack([tree.squared_distance(own, centre) for centre in tree.unstack(state["params"])])
            chosen[place] = distance.argmin().cpu()
        return chosen

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        weights = {name: params[name] for name in model.weights}
        return super().loss(model, params, batch, sent) + self.mu / 2 * tree.squared_distance(weights, sent.start)

    def merge(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> State:
        tree.put(state["last"], ids, {name: trained.params[name] for name in state["last"]})
        state["took_part"][ids] = True
        return super().merge(state, ids, sent, trained)
