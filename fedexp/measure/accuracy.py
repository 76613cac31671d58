"""Accuracy, loss and confusion matrix on the test set."""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.engine import returned
from fedexp.models.convolution import channels_last
from fedexp.world import World


def _answers(predict: Callable[[Tensor], Tensor], world: World, chunk: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """(logits, labels) of all test examples, `chunk` at a time; None: as many as suit the device."""
    chunk = chunk or world.at_once
    for start in range(0, len(world.test_y), chunk):
        rows = slice(start, start + chunk)
        labels, logits = world.test_y[rows], predict(channels_last(world.prepare_test(rows)))
        yield returned.logits(logits, len(labels), world.classes), labels


def predicted(logits: Tensor) -> Tensor:
    """The class that each row of logits predicts, int64 [n]; -1, which is no class, where they are not numbers (argmax
    would take class 0, so that a diverged model would have the accuracy of always predicting it)."""
    return torch.where(logits.isnan().any(1), -1, logits.argmax(1))


@torch.no_grad()
def test(predict: Callable[[Tensor], Tensor], world: World, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """(accuracy, mean cross-entropy) of predict(x) -> logits over all test examples: float64, on the device."""
    hits = loss = torch.zeros((), dtype=torch.float64, device=world.device)
    for logits, labels in _answers(predict, world, chunk):
        hits = hits + (predicted(logits) == labels).sum()
        loss = loss + F.cross_entropy(logits, labels, reduction="none").double().sum()
    return hits / len(world.test_y), loss / len(world.test_y)


@torch.no_grad()
def confusion(predict: Callable[[Tensor], Tensor], world: World, chunk: int | None = None) -> Tensor:
    """How many test examples of class i (row) are predicted as class j (column): int64 [C, C], on the CPU."""
    pairs = [torch.stack([labels, predicted(logits)]) for logits, labels in _answers(predict, world, chunk)]
    true, found = torch.cat(pairs, 1).cpu()
    cells = (true * world.classes + found)[found >= 0]
    return torch.bincount(cells, minlength=world.classes**2).view(world.classes, world.classes)


def by_class(predict: Callable[[Tensor], Tensor], world: World) -> Tensor:
    """The accuracy on the test examples of each class: float64 [C], on the CPU; 0 for a class that has none."""
    return confusion(predict, world).diagonal().double() / world.test_counts.clamp_min(1)


def by_chance(world: World) -> tuple[float, float]:
    """The accuracy of always predicting the test set's most frequent class, and two standard errors above it."""
    commonest = float(world.test_counts.max()) / len(world.test_y)
    return commonest, commonest + 2 * math.sqrt(commonest * (1 - commonest) / len(world.test_y))
