"""Accuracy and loss on the test set."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.world import World


@torch.no_grad()
def test(predict: Callable[[Tensor], Tensor], world: World, chunk: int = 500) -> tuple[Tensor, Tensor]:
    """(fraction right, mean cross-entropy) of predict(x) -> logits over all test examples, on the device."""
    hits = loss = torch.zeros((), device=world.device)
    for start in range(0, len(world.test_y), chunk):
        rows = slice(start, start + chunk)
        x, labels = world.prepare_test(rows), world.test_y[rows]
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        logits = predict(x)
        hits = hits + (logits.argmax(1) == labels).sum()
        loss = loss + F.cross_entropy(logits, labels, reduction="sum")
    return hits / len(world.test_y), loss / len(world.test_y)
