"""Top-k sparsification with error feedback (Stich et al. 2018; Karimireddy et al., ICML 2019)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedexp import tree
from fedexp.compression import bits
from fedexp.compression.error_feedback import ErrorFeedback
from fedexp.config.bounds import OneOf, Within
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class TopK(ErrorFeedback):
    """The `share` of all entries with the largest magnitudes, at least one, is sent: values and their positions.

    places: how positions are sent: int32, 32 bits each; packed, ceil(log2 d) bits each for d entries; bitmap, one bit
    for every entry. share 1: all values are sent, and their positions too.
    """

    share: Annotated[float, Within(0, 1, open_below=True)] = 0.1
    places: Annotated[str, OneOf("int32", "packed", "bitmap")] = "int32"

    def compress(self, update: Params, key: Tensor) -> Tree:
        flat = tree.flat(update)
        places = flat.abs().topk(max(1, round(self.share * len(flat)))).indices
        if self.places == "bitmap":
            places = places.sort().values
            held = torch.zeros_like(flat, dtype=torch.int64).scatter(0, places, 1)
            return {"values": flat[places], "places": bits.pack(held, 1)}
        width = bits.width(len(flat) - 1)
        return {"values": flat[places], "places": places.int() if self.places == "int32" else bits.pack(places, width)}

    def decode(self, payload: Tree, like: Params) -> Params:
        size, values = tree.entries(like), payload["values"]
        if self.places == "bitmap":
            held = bits.unpack(payload["places"], size, 1)
            return tree.split(torch.where(held > 0, values[(held.cumsum(0) - 1).clamp_min(0)], 0.0), like)
        places = payload["places"].long()
        if self.places == "packed":
            places = bits.unpack(payload["places"], len(values), bits.width(size - 1))
        return tree.split(values.new_zeros(size).scatter(0, places, values), like)
