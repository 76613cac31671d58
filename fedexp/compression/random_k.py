"""Random-k sparsification (Stich et al. 2018): as many entries as top-k sends, but drawn at random."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedexp import randomness, tree
from fedexp.compression.error_feedback import ErrorFeedback
from fedexp.config.bounds import Within
from fedexp.tree import Params, Tree

_STREAM = 2000


@dataclass(frozen=True)
class RandomK(ErrorFeedback):
    """k entries, the `share` of all d entries and at least one, are sent as values; a 32-bit seed tells which they are.

    Without error feedback the values are multiplied by d / k, which makes the decoded update unbiased. With it they
    are sent unchanged: with that factor, errors would grow without bound if k < d / 2. share 1 is no compression.
    """

    share: Annotated[float, Within(0, 1, open_below=True)] = 0.1

    def compress(self, update: Params, key: Tensor) -> Tree:
        flat, seed = tree.flat(update), randomness.mix(key)
        values = flat[self._places(seed, len(flat))]
        factor = 1.0 if self.error_feedback else len(flat) / len(values)
        return {"values": values * factor, "seed": seed.int()}

    def decode(self, payload: Tree, like: Params) -> Params:
        values, size = payload["values"], tree.entries(like)
        places = self._places(payload["seed"].long(), size)
        return tree.split(values.new_zeros(size).scatter(0, places, values), like)

    def _places(self, seed: Tensor, size: int) -> Tensor:
        """The positions of the k largest of `size` random numbers, no two of which are equal: int64 [k]."""
        numbers = randomness.integers(seed, size, _STREAM)
        order = numbers * size + torch.arange(size, device=numbers.device)
        return order.topk(max(1, round(self.share * size))).indices
