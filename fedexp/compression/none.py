"""No compression, and the interface of all compressions."""

from dataclasses import dataclass

from torch import Tensor

from fedexp import tree
from fedexp.config.bounds import check_fields
from fedexp.config.frozen import Frozen
from fedexp.tree import Params, Stack, Tree


@dataclass(frozen=True)
class NoCompression(Frozen):
    """The update is sent unchanged.

    `encode` runs on ONE client, vectorized like the algorithm's own client functions, on the trained entries of its
    update. Its first result is the payload, real tensors whose bytes are counted. Running statistics, and weights that
    are not trained, are always sent unchanged.
    """

    def __post_init__(self) -> None:
        check_fields(self, "compression")

    @property
    def merges(self) -> bool:
        """Whether `merge` is other than the weighted mean; the algorithm must then merge updates by it."""
        return type(self).merge is not NoCompression.merge

    def init(self, update: Params) -> Tree:
        """ONE client's memory before its first round. update: entries with the names and shapes of its updates."""
        return {}

    def encode(self, update: Params, memory: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """(payload, new memory). key: int64 [], for noise by randomness.uniform(key, count, stream), with streams from
        2000 to 2023."""
        return update, memory

    def decode(self, payload: Tree, like: Params) -> Params:
        """ONE client's update as the server reads it; `like` has its names and shapes."""
        return payload

    def merge(self, updates: Stack, weights: Tensor, trained: list[str]) -> Params:
        """The cohort's update from the decoded updates of K clients [K, ...]: the mean, weighted by `weights` [K].

        trained: names of the entries that were encoded; the others were sent unchanged.
        """
        return tree.mean(updates, weights)
