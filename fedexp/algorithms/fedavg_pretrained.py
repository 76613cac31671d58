"""FedAvg from a model that centralized SGD has pre-trained (Zhao et al. 2018, section 2.2)."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from fedexp.algorithms.centralized import Centralized, pooled
from fedexp.algorithms.fedavg import FedAvg, Stage
from fedexp.config.bounds import AtLeast, Within
from fedexp.engine import Context, State
from fedexp.measure import accuracy
from fedexp.tree import Params
from fedexp.world import World

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FedAvgPretrained(FedAvg):
    """pretraining_epochs: at most this many (0: none). pretraining_target: stop at this accuracy on the test set, as in
    the paper; null: never. pretraining_batch_size: null for K B, the batch of the paper's SGD. pretraining_lr_decay:
    factor of the learning rate after every epoch; null for the run's own.

    Pre-training begins with the run's learning rate; the rounds then begin with it again.
    """

    pretraining_epochs: Annotated[int, AtLeast(0)] = 100
    pretraining_target: Annotated[float | None, Within(0, 1, open_below=True)] = None
    pretraining_batch_size: Annotated[int | None, AtLeast(1)] = None
    pretraining_lr_decay: Annotated[float | None, Within(0, 1, open_below=True)] = None

    def stages(self, ctx: Context) -> list[Stage]:
        return self.pretraining(ctx, pooled(ctx.world), ctx.world)

    def pretraining(self, ctx: Context, server: World, clients: World) -> list[Stage]:
        """Epochs of SGD in the world `server`, which has one client, then FedAvg in the world `clients`."""
        training = Stage("training", self, replace(ctx, world=clients))
        if self.pretraining_epochs == 0:
            return [training]
        decay = ctx.local.lr_decay if self.pretraining_lr_decay is None else self.pretraining_lr_decay
        size = self.pretraining_batch_size or ctx.cohort * ctx.local.batch_size
        local = replace(ctx.local, epochs=1, steps=None, batch_size=size, lr_decay=decay)
        before = Stage(
            "pretraining", Centralized(), replace(ctx, world=server, cohort=1, local=local), self.pretraining_epochs,
            counted=False, done=self.reached,
        )  # fmt: skip
        return [before, replace(training, begin=partial(after_pretraining, examples=len(server.rows)))]

    def reached(self, state: State, ctx: Context) -> bool:
        """Whether the target ends pre-training; at the earliest after an epoch."""
        target = self.pretraining_target
        return target is not None and state["round"] > 0 and _accuracy(state["params"], ctx) >= target

    def init(self, ctx: Context, params: Params) -> State:
        return {**super().init(ctx, params), "pretraining": {"epochs": 0}}

    def summary(self, state: State, ctx: Context) -> dict[str, Any]:
        score, target = state["pretraining"].get("accuracy"), self.pretraining_target
        return {
            "pretraining_epochs": state["pretraining"]["epochs"],
            "pretraining_accuracy": score,
            "pretraining_target_reached": None if score is None or target is None else score >= target,
        }


def after_pretraining(algorithm: FedAvgPretrained, state: State, ctx: Context, examples: int) -> State:
    """The first State of the rounds from the last State of pre-training on `examples` examples: its model, and the
    number of epochs and the accuracy that pre-training has reached."""
    found = {"epochs": state["round"], "accuracy": _accuracy(state["params"], ctx)}
    first = {**algorithm.init(ctx, state["params"]), "pretraining": found}
    missed = algorithm.summary(first, ctx)["pretraining_target_reached"] is False
    log.info(
        "pre-trained for %d epochs of %d examples: test accuracy %.2f%%%s", found["epochs"], examples,
        100 * found["accuracy"],
        f", short of algorithm.pretraining_target={algorithm.pretraining_target}" if missed else "",
    )  # fmt: skip
    return first


def _accuracy(params: Params, ctx: Context) -> float:
    return float(accuracy.test(partial(ctx.model, params, training=False), ctx.world)[0])
