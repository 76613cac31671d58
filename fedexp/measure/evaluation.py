"""Evaluating a round: all of its row in metrics.csv except totals and times."""

from typing import Any

import pandas as pd
import torch

from fedexp import tree
from fedexp.algorithms.fedavg import Stage
from fedexp.config.schema import Evaluate
from fedexp.errors import require
from fedexp.measure import Measure, accuracy, clients, numbers
from fedexp.measure.reference import Reference
from fedexp.models.convolution import channels_last
from fedexp.round import Round
from fedexp.world import World


class Evaluation:
    """Which rounds of a run of `rounds` are evaluated, and how.

    stages: the run's; measures: functions of a finished round; world: the clients' world, even if a stage trains in
    another one. Raises ConfigError if participants are to be evaluated and the last stage trains without clients.
    """

    def __init__(
        self, settings: Evaluate, measures: list[Measure], reference: Reference, stages: list[Stage], world: World,
        rounds: int,
    ) -> None:  # fmt: skip
        self.settings, self.measures, self.reference = settings, measures, reference
        self.world, self.ends, self.names_stages = world, {rounds, reference.rounds}, len(stages) > 1
        require(
            settings.clients != "participants" or stages[-1].context.clients == world.clients,
            "evaluate.clients", settings.clients,
            "this algorithm trains without clients, so there are no participants; use all",
        )  # fmt: skip

    def is_due(self, number: int) -> bool:
        """Whether round `number` is evaluated: every so many rounds, and the last of the run and of the reference."""
        return number % self.settings.every == 0 or number in self.ends

    def row(self, stage: Stage, done: Round) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
        """A finished round's row, and tables by name. Only here do its numbers leave the device."""
        algorithm, state, ctx = stage.algorithm, done.after, done.ctx
        # Weights in channels last, as the test images are: of images of one channel PyTorch cannot tell that.
        used = {**state, "params": tree.apply(channels_last, state["params"])}
        score, loss = accuracy.test(lambda x: algorithm.predict(used, ctx.model, x), ctx.world)
        found = {"test_accuracy": score, "test_loss": loss}
        if len(done.ids):  # otherwise no client took part, and there is nothing to measure
            found |= {"local_loss": done.loss.double().mean()}
            for measure in self.measures:
                of_round = measure(done)
                name = getattr(measure, "__name__", type(measure).__name__)
                right = f"must give a dict of numbers by name, for metrics.csv; it gave a {type(of_round).__name__}"
                require(isinstance(of_round, dict), "measures", name, right)
                found |= of_round
        of_clients, tables = self._clients(done)
        row: dict[str, Any] = {"round": done.number, **({"stage": stage.name} if self.names_stages else {})}
        row |= numbers(found | self.reference.divergence(state["params"], done.number))
        row |= {"round_bytes_up": done.bytes_up, "round_bytes_down": done.bytes_down}
        if algorithm.system.clock:
            row |= {"simulated_seconds": state["clock"], "answered": len(done.ids)}
        spent = algorithm.privacy.metrics(state.get("privacy", {}), done.number, ctx, algorithm.selection.sampling)
        return row | spent | of_clients | algorithm.metrics(state, ctx), tables

    def _clients(self, done: Round) -> tuple[dict[str, float], dict[str, pd.DataFrame]]:
        """The accuracies of clients, summarised, and as the table clients.csv."""
        if self.settings.clients == "none":
            return {}, {}
        ids = done.ids.unique() if self.settings.clients == "participants" else torch.arange(self.world.clients)
        if len(ids) == 0:
            return {}, {}
        found, table = clients.evaluate(done.algorithm, done.after, ids, done.ctx, self.world, self.settings.on)
        return found, {"clients": table}
