"""The base of compressions that send small integers and the scales by which to multiply them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedexp.compression.none import NoCompression
from fedexp.config.bounds import OneOf
from fedexp.tree import Params


@dataclass(frozen=True)
class Scaled(NoCompression):
    """scale: one scale for each tensor of the model (tensor), or one for the whole model (model)."""

    scale: Annotated[str, OneOf("tensor", "model")] = "tensor"

    def scales(self, flat: Tensor, like: Params, of: Callable[[Tensor], Tensor]) -> Tensor:
        """of(part) for each part that has its own scale: [T], or [1]. flat: all entries [d], in the order of `like`."""
        return torch.stack([of(part) for part in flat.split(self._sizes(like))])

    def of_entries(self, scales: Tensor, like: Params) -> Tensor:
        """The scale of each entry: [d]."""
        return torch.cat([scale.expand(size) for scale, size in zip(scales.unbind(), self._sizes(like))])

    def _sizes(self, like: Params) -> list[int]:
        sizes = [leaf.numel() for leaf in like.values()]
        return sizes if self.scale == "tensor" else [sum(sizes)]
