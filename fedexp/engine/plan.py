"""Which examples a client sees in which step: keyed by (seed, round, client), known before training."""

import torch
from torch import Tensor

from fedexp.engine.settings import Local
from fedexp.randomness import generator, key


def batches(seed: int, round: int, client: int, size: int, local: Local) -> list[Tensor]:
    """Positions 0..size-1 of the client's examples, a tensor a step: reshuffled every epoch."""
    shuffle = generator(seed, "shuffle", round, client)
    epoch, total = local.schedule(size)
    kept = min(size, epoch * local.batch_size) if local.drop_last else size
    plan: list[Tensor] = []
    while len(plan) < total:
        plan.extend(torch.randperm(size, generator=shuffle)[:kept].split(local.batch_size))
    return plan[:total]


def noise_key(seed: int, round: int, client: int) -> int:
    """Where the client's dropout and augmentation noise comes from this round; the step is added to it."""
    return key(seed, "noise", round, client) >> 1  # room for the step's number
