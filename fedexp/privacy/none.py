"""No privacy mechanism, and the interface of all mechanisms."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedexp.config.bounds import check_fields
from fedexp.config.frozen import Frozen
from fedexp.engine import Context
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class NoPrivacy(Frozen):
    """Updates and their mean stay unchanged. Only trained entries pass through these functions.

    A mechanism protects what leaves the server through the mean of clipped updates. An algorithm in which the server
    learns of clients in other ways allows no mechanism but this one (fedexp/algorithms/fedavg.py).
    sampling: how clients are drawn, as told by the selection (fedexp/selection/uniform.py).
    """

    def __post_init__(self) -> None:
        check_fields(self, "privacy")

    @property
    def needs_all(self) -> str:
        """Why every client that is drawn must answer; empty where clients may fail."""
        return ""

    def check(self, ctx: Context, sampling: str | None) -> None:
        """Raise ConfigError for settings that cannot work with these clients."""

    def init(self, ctx: Context) -> Tree:
        """The server's memory for the mechanism before the first round."""
        return {}

    def download(self, memory: Tree) -> Tree:
        """What a client must know to clip its update: it is downloaded by each client, and counted."""
        return {}

    def clip(self, update: Params, received: Tree) -> tuple[Params, Tree]:
        """ONE client's update, clipped before it is compressed, and what else the client uploads for the mechanism.
        The server clips the decoded update once more. received: what `download` returned."""
        return update, {}

    def weights(self, weights: Tensor) -> Tensor:
        """The weight of each update in the mean [K], given the selection's weights [K]."""
        return weights

    def perturb(self, mean: Params, cohort: int, memory: Tree, ctx: Context, number: int) -> Params:
        """The mean update of `cohort` clients (0 or more), as the server may use it. number: the round, from 0."""
        return mean

    def learn(self, memory: Tree, told: Tree, ctx: Context, number: int) -> Tree:
        """The server's memory after a round. told: what clients uploaded for the mechanism (see `clip`) [K, ...]; {} if
        no client took part. number: the round, from 0."""
        return memory

    def metrics(self, memory: Tree, rounds: int, ctx: Context, sampling: str | None) -> dict[str, float]:
        """What the mechanism adds to the row of metrics.csv after `rounds` rounds. memory: the server's, after them."""
        return {}

    def summary(self, sampling: str | None) -> dict[str, Any]:
        """What the mechanism adds to result.json."""
        return {}
