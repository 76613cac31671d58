"""No compression, and the contract of all compressions."""

from dataclasses import dataclass

from torch import Tensor

from fedexp import tree
from fedexp.config.bounds import check_fields
from fedexp.config.frozen import Frozen
from fedexp.tree import Params, Stack, Tree


@dataclass(frozen=True)
class NoCompression(Frozen):
    """The update crosses as it is.

    `encode` runs on ONE client, vectorized like the algorithm's own client functions, over the trained entries of its
    update; what it returns first is the payload, real tensors whose bytes are what is counted. Running statistics
    always cross as they are.
    """

    merges = False  # True where `merge` is another than the weighted mean: it then is the server's only way to do it

    def __post_init__(self) -> None:
        check_fields(self, "compression")

    def init(self, update: Params) -> Tree:
        """What ONE client remembers before its first round, given entries like its update's."""
        return {}

    def encode(self, update: Params, memory: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """(payload, what is remembered). key: int64 [], for noise by randomness.uniform(key, count, stream), streams
        from 2000 on."""
        return update, memory

    def decode(self, payload: Tree, like: Params) -> Params:
        """ONE client's update as the server reads it; `like` has its names and shapes."""
        return payload

    def merge(self, updates: Stack, weights: Tensor, trained: list[str]) -> Params:
        """The cohort's update from those of K clients [K, ...], as `decode` read them: the mean, weighted by [K].

        trained: names of the entries that passed `encode`; the others crossed as they are.
        """
        return tree.mean(updates, weights)
