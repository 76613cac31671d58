"""Evaluating a round: all of its row in metrics.csv except totals and times."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import torch

from fedexp import tree
from fedexp.algorithms.fedavg import Stage
from fedexp.config.schema import Evaluate
from fedexp.engine import State, returned
from fedexp.errors import ConfigError, require
from fedexp.measure import Measure, accuracy, clients, is_number, numbers
from fedexp.measure.reference import Reference
from fedexp.models.convolution import channels_last
from fedexp.round import Round
from fedexp.world import World

_RIGHT = "must give a dict of numbers by name, for metrics.csv"


class Evaluation:
    """Which rounds of a run of `rounds` are evaluated, and how.

    stages: the run's; measures: functions of a finished round, by their keys in the config; world: the clients' world,
    even if a stage trains in another one. Raises ConfigError if participants are to be evaluated and the last stage
    trains without clients.
    """

    def __init__(
        self, settings: Evaluate, measures: Mapping[str, Measure], reference: Reference, stages: list[Stage],
        world: World, rounds: int,
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
        # Weights are in channels-last memory, as test images are: PyTorch cannot tell that from images of one channel.
        used = {**state, "params": tree.apply(channels_last, state["params"])}
        score, loss = accuracy.test(lambda x: algorithm.predict(used, ctx.model, x), ctx.world)
        first = {"round": done.number, **({"stage": stage.name} if self.names_stages else {})}
        parts = [("", "", first), ("", "", {"test_accuracy": score, "test_loss": loss})]
        if len(done.ids):  # otherwise no client took part, and there is nothing to measure
            parts.append(("", "", {"local_loss": done.loss.double().mean()}))
            shown = {"after": _own(state), "before": _own(done.before), "uploads": done.uploads}
            for own_key, measure in self.measures.items():
                key, name = f"measures.{own_key}", getattr(measure, "__name__", type(measure).__name__)
                versions = returned.versions(shown)
                parts.append((key, name, measure(done)))
                returned.unchanged(f"{key}={name}", "what it is given", shown, versions)
        of_clients, tables = self._clients(done)
        bytes_sent = {"round_bytes_up": done.bytes_up, "round_bytes_down": done.bytes_down}
        parts += [("", "", self.reference.divergence(state["params"], done.number)), ("", "", bytes_sent)]
        if algorithm.system.clock:
            parts.append(("", "", {"simulated_seconds": state["clock"], "answered": len(done.ids)}))
        spent = algorithm.privacy.metrics(state.get("privacy", {}), done.number, ctx, algorithm.selection.sampling)
        versions = returned.versions(_own(state))
        own = ("algorithm", type(algorithm).__name__, algorithm.metrics(state, ctx))
        returned.unchanged("metrics", "the State", _own(state), versions)
        return numbers(_joined([*parts, ("", "", spent), ("", "", of_clients), own])), tables

    def _clients(self, done: Round) -> tuple[dict[str, float], dict[str, pd.DataFrame]]:
        """The accuracies of clients, summarised, and as the table clients.csv."""
        if self.settings.clients == "none":
            return {}, {}
        ids = done.ids.unique() if self.settings.clients == "participants" else torch.arange(self.world.clients)
        if len(ids) == 0:
            return {}, {}
        found, table = clients.evaluate(done.algorithm, done.after, ids, done.ctx, self.world, self.settings.on)
        return found, {"clients": table}


def _own(state: State) -> State:
    """A State without the clients' memory."""
    return {**state, "memory": {}}


def _joined(parts: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """The columns that all parts of a row give. parts: the config's key and the name of who gives a part, both empty
    for fedexp itself, and the part. Raises ConfigError where a measure or an algorithm gives what is no number, or a
    column that another part has."""
    row: dict[str, Any] = {}
    givers: dict[str, tuple[str, str]] = {}
    for key, giver, part in parts:
        if key:
            require(isinstance(part, dict), key, giver, f"{_RIGHT}; it gave a {type(part).__name__}")
            wrong = next((name for name, value in part.items() if not is_number(value)), None)
            require(wrong is None, key, giver, f"{_RIGHT}; {wrong} is not a number")
        for name, value in part.items():
            if name in row:
                blamed = (key, giver) if key else givers[name]
                raise ConfigError(*blamed, f"gives {name}, a column that metrics.csv has already; use another name")
            row[name], givers[name] = value, (key, giver)
    return row
