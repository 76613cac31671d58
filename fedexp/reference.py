"""Centralized SGD in step with a run's rounds, and how far the global model is from it (Zhao et al. 2018, eq. 1).

It starts from the same weights and trains on the union of the clients' data with a batch of K B, as many
steps a round as a client takes on average. Its engine is its own, so that nothing of it counts as the
run's; its State goes into the run's checkpoint.
"""

from collections.abc import Callable
from dataclasses import replace

from fedexp.algorithms.centralized import Centralized
from fedexp.engine import Engine, Hardware, Local
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.measure.divergence import weight_divergence
from fedexp.models import Model
from fedexp.randomness import generator
from fedexp.settings import Measures
from fedexp.tree import Params, spread
from fedexp.world import World


class Reference:
    """The reference of one run: 0 rounds of it, with no measures, where none is wanted."""

    def __init__(
        self, measures: Measures, rounds: int, cohort: int, model: Model, world: World, local: Local,
        hardware: Hardware, seed: int, stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        wanted = rounds if measures.reference_rounds is None else min(rounds, measures.reference_rounds)
        self.rounds = wanted if measures.reference else 0
        cohort = min(cohort, world.clients)  # centralized training has pooled its clients into one
        mean_size = -(-len(world.rows) // world.clients)
        self.local = replace(local, batch_size=local.batch_size * cohort, steps=local.schedule(mean_size)[1])
        self.rule = Centralized(1, self.local)
        self.world = self.rule.adapt(world)
        self.engine = Engine(model, self.world, self.local, hardware, seed, stopped)
        self.state: State = {}

    def begin(self, params: Params) -> None:
        """Start from the run's own first weights, saying what it costs."""
        if not self.rounds:
            return
        shapes = {name: value.shape for name, value in self.engine.model.params().items()}
        require(
            all(name in params and params[name].shape == shapes[name] for name in self.engine.model.weights),
            "measures.reference", "centralized", "this algorithm has no single global model to compare with it",
        )  # fmt: skip
        self.state = self.rule.init(self.world, self.engine.model, params)
        print(
            f"fedexp: measures.reference=centralized trains {self.local.steps} batches of {self.local.batch_size} "
            f"examples a round besides, for {self.rounds} rounds: as much as the cohort's own training"
        )

    def follow(self, round: int) -> None:
        """Train until `round` rounds are finished; done already after an interruption, nothing happens."""
        while self.rounds and self.state["round"] < min(round, self.rounds):
            draw = generator(self.engine.seed, "reference", self.state["round"])
            self.state = self.rule.round(self.state, self.world, self.engine, draw)
            self.engine.drain()

    def divergence(self, params: Params, round: int) -> dict[str, float]:
        """||w - w_sgd|| / ||w_sgd|| over all weights and for each tensor (a layer's weight, its bias)."""
        if round > self.rounds:
            return {}
        names = self.engine.model.weights
        mine, its = (spread({name: each[name] for name in names}, 1) for each in (params, self.state["params"]))
        layers = {f"reference_divergence/{name}": weight_divergence({name: mine[name]}, its) for name in names}
        values = {"reference_divergence": weight_divergence(mine, its), **layers}
        return {name: float(value) for name, value in values.items()}

    def close(self) -> None:
        self.engine.close()
