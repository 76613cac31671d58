"""FedAvg (McMahan et al., AISTATS 2017), and the contract that every other algorithm refines."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedexp import tree
from fedexp.engine import Batch, Engine, Local, Sent, Trained
from fedexp.engine.client import OneClient
from fedexp.engine.exchange import State
from fedexp.models import Model
from fedexp.tree import Params, Stack
from fedexp.world import World


@dataclass
class FedAvg:
    """Select K clients uniformly, train them from the global model, average by their number of examples.

    Fields are settings and never change; all memory is in State, nested dicts of tensors and plain
    numbers, so that a checkpoint is free. State may be changed in place in `merge` alone.
    """

    clients_per_round: int
    local: Local

    def check(self, world: World) -> None:
        """Raise ConfigError for settings that cannot work in this world, before any training."""

    def adapt(self, world: World) -> World:
        """The world that this algorithm trains in (centralized pools the clients)."""
        return world

    def init(self, world: World, model: Model, params: Params) -> State:
        """All of the server's and the clients' memory; "round" counts finished rounds.

        `model.weights` names the entries of params that are trained; the rest are running statistics.
        """
        return {"round": 0, "params": params}

    def prepare(self, state: State, world: World, engine: Engine) -> State:
        """Training before the first round (a warm-up model); not called again when a run is resumed."""
        return state

    def select(self, state: State, world: World, gen: Generator) -> Tensor:
        """Client ids [K]: uniform without replacement."""
        return torch.randperm(world.clients, generator=gen)[: self.clients_per_round]

    def send(self, state: State, ids: Tensor) -> Sent:
        """From which weights each client starts, and with what else."""
        return Sent(tree.spread(state["params"], len(ids)))

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        """What ONE client minimises on one batch: mean cross-entropy. Pure; vectorised by the engine."""
        return batch.mean(F.cross_entropy(model(params, batch.x), batch.y, reduction="none"))

    def correct(self, grads: Params, params: Params, sent: OneClient) -> Params:
        """A change to ONE client's gradient, before clipping, weight decay and momentum."""
        return grads

    def answer(self, model: Model, sent: OneClient, x: Tensor) -> Tensor:
        """Logits [n, C] of the model that ONE client received, before it trains."""
        return model(sent.start, x, training=False)

    def reply(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> tree.Tree:
        """What clients send up besides their weights."""
        return {}

    def merge(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> State:
        """The server's step: the mean of the returned models, weighted by n_k."""
        return {**state, "params": tree.mean(trained.params, trained.sizes)}

    def round(self, state: State, world: World, engine: Engine, gen: Generator) -> State:
        """One communication round."""
        ids = self.select(state, world, gen)
        sent = self.send(state, ids).to(world.device)
        trained = engine.train(self, state, ids, sent)
        return {**self.merge(state, ids, sent, trained), "round": state["round"] + 1}

    def centre(self, state: State, ids: Tensor) -> Stack:
        """The model that each of `ids` is measured against for weight divergence: the global one."""
        return tree.spread(state["params"], len(ids))

    def predict(self, state: State, model: Model, x: Tensor) -> Tensor:
        """Logits [n, C] of what is evaluated now: the global model."""
        return model(state["params"], x, training=False)

    def examined(self, state: State, engine: Engine) -> tuple[Callable[[Tensor], Tensor], World]:
        """The function from test examples to logits, and the world that those are read from: `predict` over
        the run's world (or, where an algorithm keeps features of them, a head over these)."""
        return (lambda x: self.predict(state, engine.model, x)), engine.world

    def observe(self, state: State, engine: Engine) -> dict[str, float]:
        """What this algorithm adds to the row of an evaluated round in metrics.csv."""
        return {}

    def conclude(self, state: State, engine: Engine) -> dict[str, Any]:
        """What it adds to result.json at the end."""
        return {}

    def exhibits(self, state: State, engine: Engine) -> dict[str, Any]:
        """Pictures (matplotlib figures) and tables (data frames) for the run's folder, by file name."""
        return {}
