"""signSGD with majority vote (Bernstein et al., ICML 2018 and ICLR 2019), applied to updates instead of gradients.

w <- w + step sign(sum_k sign(w_k - w)), entry by entry: each client has one vote, whatever the size of its data. A
client that the selection draws twice votes twice.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedexp import tree
from fedexp.compression import bits
from fedexp.compression.none import NoCompression
from fedexp.config.bounds import Above
from fedexp.tree import Params, Stack, Tree


@dataclass(frozen=True)
class MajorityVote(NoCompression):
    """One bit per entry. step: how far a vote moves an entry, times the server optimizer's learning rate.

    sign(0) and ties are +1: a third value would take more than one bit. Running statistics are sent unchanged and
    averaged.
    """

    step: Annotated[float, Above(0)] = 1e-3

    def encode(self, update: Params, memory: Tree, key: Tensor) -> tuple[Tree, Tree]:
        return {"signs": bits.pack_signs(tree.flat(update))}, memory

    def decode(self, payload: Tree, like: Params) -> Params:
        votes = bits.unpack_signs(payload["signs"], tree.entries(like))
        return tree.split(votes.to(next(iter(like.values()))) * self.step, like)

    def merge(self, updates: Stack, weights: Tensor, trained: list[str]) -> Params:
        # Signs are summed because sums of steps are rounded, so that some ties would not be exactly 0.
        votes = {name: updates[name].sign().sum(0) for name in trained if name in updates}
        voted = {name: self.step * (2 * (total >= 0).to(total) - 1) for name, total in votes.items()}
        return {**super().merge(updates, weights, trained), **voted}
