"""FedAvg from a model that centralized SGD has pre-trained (Zhao et al. 2018, section 2.2)."""

from dataclasses import dataclass, replace
from typing import Any

from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Engine
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.measure import accuracy
from fedexp.models import Model
from fedexp.randomness import generator
from fedexp.tree import Params
from fedexp.world import World


@dataclass
class FedAvgPretrained(FedAvg):
    """pretraining_epochs: at most so many (0: none). pretraining_target: stop at this test accuracy; null:
    never. pretraining_batch_size: null for K B, the batch of the paper's SGD. pretraining_lr_decay: times the
    learning rate, every epoch; null for the run's own.

    It begins with the run's learning rate; the rounds then start afresh.
    """

    pretraining_epochs: int = 100
    pretraining_target: float | None = None
    pretraining_batch_size: int | None = None
    pretraining_lr_decay: float | None = None

    def __post_init__(self) -> None:
        target, size, decay = self.pretraining_target, self.pretraining_batch_size, self.pretraining_lr_decay
        require(
            self.pretraining_epochs >= 0, "algorithm.pretraining_epochs", self.pretraining_epochs, "must be at least 0"
        )
        require(
            target is None or 0 < target <= 1, "algorithm.pretraining_target", target,
            "accuracies are fractions in (0, 1]; null for none",
        )  # fmt: skip
        require(size is None or size >= 1, "algorithm.pretraining_batch_size", size, "must be at least 1; null for K B")
        require(
            decay is None or 0 < decay <= 1, "algorithm.pretraining_lr_decay", decay,
            "must be in (0, 1]; null for local.lr_decay",
        )  # fmt: skip

    def init(self, world: World, model: Model, params: Params) -> State:
        nothing = {"epochs": 0, "accuracy": None, "target_reached": None}
        return {**super().init(world, model, params), "pretraining": nothing}

    def pretraining_world(self, world: World) -> World:
        """Where the model is trained beforehand: the union of the clients' data, as one client."""
        return Centralized(1, self.local).adapt(world)

    def prepare(self, state: State, world: World, engine: Engine) -> State:
        """Train epoch by epoch. The test set decides when to stop, as in the paper."""
        if self.pretraining_epochs == 0:
            return state
        size = self.pretraining_batch_size or self.clients_per_round * self.local.batch_size
        local = replace(self.local, epochs=1, steps=None, batch_size=size)
        if self.pretraining_lr_decay is not None:
            local = replace(local, lr_decay=self.pretraining_lr_decay)
        rule, pooled, model = Centralized(1, local), self.pretraining_world(world), engine.model
        # An engine of its own: this is no exchange with clients and no part of a round's measures.
        server = Engine(model, pooled, local, engine.hardware, engine.seed, engine.shop.stopped)
        trained, score, reached = rule.init(pooled, model, state["params"]), 0.0, None
        target = self.pretraining_target
        while trained["round"] < self.pretraining_epochs and not reached:
            trained = rule.round(trained, pooled, server, generator(engine.seed, "pretraining", trained["round"]))
            server.drain()
            score = float(accuracy.test(lambda x, now=trained: rule.predict(now, model, x), pooled)[0])
            reached = None if target is None else score >= target
        server.close()
        epochs = trained["round"]
        short = f", short of algorithm.pretraining_target={target}" if reached is False else ""
        print(
            f"fedexp: pre-trained for {epochs} epochs of {len(pooled.rows)} examples: test accuracy {score:.2%}{short}"
        )
        done = {"epochs": epochs, "accuracy": score, "target_reached": reached}
        return {**state, "params": trained["params"], "pretraining": done}

    def conclude(self, state: State, engine: Engine) -> dict[str, Any]:
        return {f"pretraining_{name}": value for name, value in state["pretraining"].items()}
