"""Signs and their mean magnitude, with error feedback: EF-signSGD (Karimireddy et al., ICML 2019, algorithm 1)."""

from dataclasses import dataclass

from torch import Tensor

from fedexp import tree
from fedexp.compression import bits
from fedexp.compression.error_feedback import ErrorFeedback
from fedexp.compression.scaled import Scaled
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class Sign(ErrorFeedback, Scaled):
    """||x||_1 / d sign(x) for each tensor x of d entries, or the whole update: one bit per entry, sign(0) being +1."""

    def compress(self, update: Params, key: Tensor) -> Tree:
        flat = tree.flat(update)
        magnitudes = self.scales(flat, update, lambda part: part.abs().mean())
        return {"magnitudes": magnitudes, "signs": bits.pack_signs(flat)}

    def decode(self, payload: Tree, like: Params) -> Params:
        signs = bits.unpack_signs(payload["signs"], tree.entries(like))
        return tree.split(self.of_entries(payload["magnitudes"], like) * signs, like)
