"""Error feedback (Stich et al. 2018; Karimireddy et al., ICML 2019), the base of compressions that are biased.

x = update + e; C(x) is sent; e <- x - C(x), which the client keeps until it is drawn again.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedexp import tree
from fedexp.compression.none import NoCompression
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class ErrorFeedback(NoCompression, ABC):
    """error_feedback: whether the client remembers the part that was not sent and adds it to its next update."""

    error_feedback: bool = True

    @abstractmethod
    def compress(self, update: Params, key: Tensor) -> Tree:
        """The payload, to be read by `decode`. key: as in `encode`."""

    def init(self, update: Params) -> Tree:
        return {"error": tree.apply(torch.zeros_like, update)} if self.error_feedback else {}

    def encode(self, update: Params, memory: Tree, key: Tensor) -> tuple[Tree, Tree]:
        if not self.error_feedback:
            return self.compress(update, key), memory
        whole = tree.apply(torch.add, update, memory["error"])
        payload = self.compress(whole, key)
        return payload, {"error": tree.apply(torch.sub, whole, self.decode(payload, whole))}
