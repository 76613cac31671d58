"""Which examples a client sees in which step: keyed by (seed, round, client), known before training."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedexp.config.settings import Local
from fedexp.randomness import generator, key


def positions(seed: int, number: int, client: int, size: int, local: Local, stream: str) -> Iterator[Tensor]:
    """Positions 0..size-1 of the client's examples, reshuffled every epoch: for each epoch a table [steps, B], with -1
    where a batch is not full. stream: of a Pass."""
    shuffle = generator(seed, f"shuffle{stream}", number, client)
    epoch, total = local.schedule(size)
    width = min(local.batch_size, size)
    kept = min(size, epoch * width)
    for first in range(0, total, epoch):
        table = torch.full((epoch * width,), -1)
        table[:kept] = torch.randperm(size, generator=shuffle)[:kept]
        yield table.view(epoch, width)[: total - first]


def batches(seed: int, number: int, client: int, size: int, local: Local, stream: str = "") -> Iterator[Tensor]:
    """The same, step by step: positions [at most B]."""
    for table in positions(seed, number, client, size, local, stream):
        for row in table:
            yield row[: int((row >= 0).sum())]


def noise_key(seed: int, number: int, client: int, stream: str) -> int:
    """Where the client's dropout and augmentation noise comes from this round; the step is added to it."""
    return key(seed, f"noise{stream}", number, client) >> 1  # room for the step's number
