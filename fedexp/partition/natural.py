"""The partition that the data come with: each writer, camera or pharmacy is a client."""

import torch
from torch import Tensor

from fedexp.data import Dataset
from fedexp.errors import require


def natural(dataset: Dataset, clients: int, seed: int) -> list[Tensor]:
    """The examples of each of the source's own clients. `clients` must be their number."""
    require(
        dataset.owners is not None, "partition", "natural",
        f"{dataset.name} does not say which client each example belongs to; image_folder does with train/CLIENT/CLASS/",
    )  # fmt: skip
    owners = dataset.owners[dataset.owners >= 0].unique()
    count = len(owners)
    require(clients == count, "clients", clients, f"this data set has {count} clients of its own; use {count}")
    return [torch.nonzero(dataset.owners == owner).squeeze(1) for owner in owners]
