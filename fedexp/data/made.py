"""Random images or tokens, for benchmarks and for trying things out: nothing to download, nothing to learn."""

import torch

from fedexp.data.dataset import Dataset
from fedexp.data.transform import Transform
from fedexp.errors import require

_MOST_CLASSES = 100_000  # more would fill the memory, since each client's examples are counted by class


def made(
    transform: Transform, shape: list[int], classes: int = 10, train: int = 60000, test: int = 1000,
    tokens: int | None = None,
) -> Dataset:  # fmt: skip
    """Uniformly random labels, and uniformly random uint8 images of `shape` (channels, height, width); or, if `tokens`,
    the number of different tokens, is given, texts of `shape` (length)."""
    for key, value in {"classes": classes, "train": train, "test": test, "tokens": tokens}.items():
        require(value is None or value >= 1, f"dataset.{key}", value, "must be at least 1")
    require(classes <= _MOST_CLASSES, "dataset.classes", classes, f"must be at most {_MOST_CLASSES}")
    most = torch.iinfo(torch.int16).max + 1
    require(tokens is None or tokens <= most, "dataset.tokens", tokens, f"must be at most {most}")
    dimensions, right = (3, "[channels, height, width]") if tokens is None else (1, "[length]")
    fits = len(shape) == dimensions and min(shape) >= 1
    require(fits, "dataset.shape", shape, f"must be {right}, from 1")
    kind, count = (torch.uint8, 256) if tokens is None else (torch.int16, tokens)
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, count, (train + test, *shape), generator=draw, dtype=kind)
    y = torch.randint(0, classes, (train + test,), generator=draw)
    return Dataset("made", x[:train], y[:train], x[train:], y[train:], classes, transform)
