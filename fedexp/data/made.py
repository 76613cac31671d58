"""Made-up images, for benchmarks and for trying things out: nothing to download, nothing to learn from them."""

import torch

from fedexp.data.dataset import Dataset, Transform
from fedexp.errors import require


def made(transform: Transform, shape: list[int], classes: int = 10, train: int = 60000, test: int = 1000) -> Dataset:
    """Uniformly random uint8 images of `shape` (channels, height, width) and labels."""
    for key, value in {"classes": classes, "train": train, "test": test}.items():
        require(value >= 1, f"dataset.{key}", value, "must be at least 1")
    require(len(shape) == 3 and min(shape) >= 1, "dataset.shape", shape, "must be [channels, height, width], from 1")
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (train + test, *shape), generator=draw, dtype=torch.uint8)
    y = torch.randint(0, classes, (train + test,), generator=draw)
    return Dataset("made", x[:train], y[:train], x[train:], y[train:], classes, transform)
