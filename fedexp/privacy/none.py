"""No privacy mechanism, and the contract of all of them."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedexp.config.bounds import check_fields
from fedexp.config.frozen import Frozen
from fedexp.engine import Context
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class NoPrivacy(Frozen):
    """Updates and their mean stay as they are. Only trained entries pass through here.

    A mechanism covers what leaves the server through the mean of bounded updates; an algorithm with other ways for the
    server to learn of its clients refuses every mechanism but this (fedexp/algorithms/fedavg.py).
    sampling: how clients are drawn, in the words of a selection (fedexp/selection/uniform.py).
    """

    def __post_init__(self) -> None:
        check_fields(self, "privacy")

    def check(self, ctx: Context, sampling: str | None) -> None:
        """Raise ConfigError for settings that cannot work with these clients."""

    def init(self, ctx: Context) -> Tree:
        """What the server remembers for the mechanism before the first round."""
        return {}

    def download(self, memory: Tree) -> Tree:
        """What a client must know to bound its update: it crosses down to each, and is counted."""
        return {}

    def clip(self, update: Params, received: Tree) -> tuple[Params, Tree]:
        """ONE client's update, bounded, and what else the client says, which crosses up as well; before the update is
        compressed. The server bounds what it has read once more. received: what `download` gave."""
        return update, {}

    def weights(self, weights: Tensor) -> Tensor:
        """How much each update counts in the mean [K], given what the selection says."""
        return weights

    def perturb(self, mean: Params, cohort: int, memory: Tree, ctx: Context, number: int) -> Params:
        """The mean update of `cohort` clients, who may be none, as the server may use it. number: the round, from 0."""
        return mean

    def learn(self, memory: Tree, told: Tree, ctx: Context, number: int) -> Tree:
        """What is remembered after a round (from 0) in which clients told what `clip` had them say [K, ...]; {} where
        nobody took part."""
        return memory

    def metrics(self, memory: Tree, rounds: int, ctx: Context, sampling: str | None) -> dict[str, float]:
        """What it adds to the row of metrics.csv after so many rounds. memory: what it remembers by now."""
        return {}

    def summary(self, sampling: str | None) -> dict[str, Any]:
        """What it adds to result.json."""
        return {}
