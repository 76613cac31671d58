"""Accuracy and loss on the test set, a class at a time, and on the clients' own data."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.world import World


def _answers(predict: Callable[[Tensor], Tensor], world: World, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(logits, labels) of all test examples, so many at a time."""
    for start in range(0, len(world.test_y), chunk):
        rows = slice(start, start + chunk)
        x = world.prepare_test(rows)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        yield predict(x), world.test_y[rows]


@torch.no_grad()
def test(predict: Callable[[Tensor], Tensor], world: World, chunk: int = 500) -> tuple[Tensor, Tensor]:
    """(fraction right, mean cross-entropy) of predict(x) -> logits over all test examples, on the device."""
    hits = loss = torch.zeros((), device=world.device)
    for logits, labels in _answers(predict, world, chunk):
        hits = hits + (logits.argmax(1) == labels).sum()
        loss = loss + F.cross_entropy(logits, labels, reduction="sum")
    return hits / len(world.test_y), loss / len(world.test_y)


@torch.no_grad()
def confusion(predict: Callable[[Tensor], Tensor], world: World, chunk: int = 500) -> Tensor:
    """How many test examples of class i (row) are taken for class j (column): int64 [C, C], on the CPU."""
    cells = [labels * world.classes + logits.argmax(1) for logits, labels in _answers(predict, world, chunk)]
    return torch.bincount(torch.cat(cells).cpu(), minlength=world.classes**2).view(world.classes, world.classes)


@torch.no_grad()
def of_clients(predict: Callable[[Tensor], Tensor], world: World, chunk: int = 500) -> Tensor:
    """Fraction right on each client's own training data, un-augmented: [N], on the CPU."""
    parts = world.rows.split(chunk)
    hits = torch.cat([predict(world.prepare(part)).argmax(1) == world.y[part] for part in parts])
    return torch.stack([own.double().mean() for own in hits.cpu().split(world.sizes.tolist())])


def by_chance(world: World) -> tuple[float, float]:
    """Accuracy of always answering the test set's commonest class, and what is within two standard errors of it."""
    commonest = float(torch.bincount(world.test_y.cpu()).max()) / len(world.test_y)
    return commonest, commonest + 2 * math.sqrt(commonest * (1 - commonest) / len(world.test_y))


def last_rounds(rows: list[dict[str, Any]], rounds: int = 10) -> float:
    """Mean test accuracy over what was evaluated in the last so many communication rounds."""
    recent = [row["test_accuracy"] for row in rows if row["round"] > rows[-1]["round"] - rounds]
    return sum(recent) / len(recent)
