"""QSGD's quantization (Alistarh et al., NeurIPS 2017), applied to updates as in FedPAQ (Reisizadeh et al., AISTATS
2020).

An entry x_i of a vector x is sent as sign(x_i) xi, xi being floor(s |x_i| / ||x||) or one more, drawn at random such
that ||x|| sign(x_i) xi / s is x_i in expectation.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedexp import randomness, tree
from fedexp.compression import bits
from fedexp.compression.scaled import Scaled
from fedexp.config.bounds import AtLeast
from fedexp.tree import Params, Tree

_STREAM = 2000


@dataclass(frozen=True)
class Qsgd(Scaled):
    """levels: s; an entry takes ceil(log2(2 s + 1)) bits, so that 2^(b - 1) - 1 levels fill b bits.

    scale: the Euclidean norm of each tensor, or that of the whole update.
    """

    levels: Annotated[int, AtLeast(1)] = 7

    def encode(self, update: Params, memory: Tree, key: Tensor) -> tuple[Tree, Tree]:
        flat = tree.flat(update)
        norms = self.scales(flat, update, torch.linalg.vector_norm)
        norm = self.of_entries(norms, update)
        exact = self.levels * flat.abs() / torch.where(norm > 0, norm, 1.0)
        level = (exact + randomness.uniform(key, len(flat), _STREAM)).floor().clamp_max(self.levels)
        codes = (level * flat.sign()).to(torch.int64) + self.levels
        return {"norms": norms, "codes": bits.pack(codes, bits.width(2 * self.levels))}, memory

    def decode(self, payload: Tree, like: Params) -> Params:
        levels = bits.unpack(payload["codes"], tree.entries(like), bits.width(2 * self.levels)) - self.levels
        return tree.split(self.of_entries(payload["norms"], like) * levels / self.levels, like)
