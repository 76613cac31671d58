"""Centralized SGD in step with a run's rounds, and the global model's distance from it (Zhao et al. 2018, eq. 1).

It starts from the same weights and trains on the union of the clients' data with a batch of K B, in each round
for as many steps as a client of mean size takes. It has an engine of its own, so that nothing of it is counted
for the run; its State is saved in the run's checkpoint.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedexp.algorithms.centralized import Centralized
from fedexp.engine import Context, State
from fedexp.errors import require
from fedexp.measure.divergence import weight_divergence
from fedexp.round import begin, one_round
from fedexp.tree import Params, spread

log = logging.getLogger(__name__)


class Reference:
    """The reference of one run, for its first `rounds` rounds (0: no reference, and nothing is measured)."""

    def __init__(self, rounds: int, ctx: Context, stopped: Callable[[], bool]) -> None:
        self.rounds, self.state = rounds, State()
        _, steps = ctx.local.schedule(-(-len(ctx.world.rows) // ctx.clients))  # of a client of mean size
        local = replace(ctx.local, batch_size=ctx.local.batch_size * ctx.cohort, steps=steps)
        self.algorithm = Centralized()
        (stage,) = self.algorithm.stages(replace(ctx, local=local))
        self.ctx = stage.context.ready(stopped)

    def begin(self, params: Params) -> None:
        """Start from the run's own first weights, and log how much training it adds."""
        if not self.rounds:
            return
        shapes = {name: value.shape for name, value in self.ctx.model.params().items()}
        require(
            all(name in params and params[name].shape == shapes[name] for name in self.ctx.weights),
            "reference", "centralized", "this algorithm has no single global model to compare with it",
        )  # fmt: skip
        self.state = begin(self.algorithm, self.algorithm.init(self.ctx, params), self.ctx)
        local = self.ctx.local
        log.info(
            "reference=centralized also trains %d batches of up to %d examples a round, for %d rounds: as many steps "
            "as a client of mean size takes", local.steps, local.batch_size, self.rounds,
        )  # fmt: skip

    def follow(self, number: int) -> None:
        """Train until `number` rounds are finished; nothing happens if they are, as after an interruption."""
        while self.rounds and self.state["round"] < min(number, self.rounds):
            self.state = one_round(self.algorithm, self.state, self.ctx).after

    def divergence(self, params: Params, number: int) -> dict[str, Any]:
        """||w - w_sgd|| / ||w_sgd|| over all weights and for each tensor (a layer's weight, its bias)."""
        if number > self.rounds:
            return {}
        names = self.ctx.weights
        mine, its = (spread({name: each[name] for name in names}, 1) for each in (params, self.state["params"]))
        layers = {f"reference_divergence/{name}": weight_divergence({name: mine[name]}, its)[0] for name in names}
        return {"reference_divergence": weight_divergence(mine, its)[0], **layers}

    def close(self) -> None:
        self.ctx.engine.close()
