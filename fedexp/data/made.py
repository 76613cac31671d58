"""Made-up images, for benchmarks and for trying things out: nothing to download, nothing to learn from them."""

import torch

from fedexp.data.dataset import Dataset, Transform


def made(transform: Transform, shape: list[int], classes: int = 10, train: int = 60000, test: int = 1000) -> Dataset:
    """Uniformly random uint8 images of `shape` (channels, height, width) and labels."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (train + test, *shape), generator=draw, dtype=torch.uint8)
    y = torch.randint(0, classes, (train + test,), generator=draw)
    return Dataset("made", x[:train], y[:train], x[train:], y[train:], classes, transform)
