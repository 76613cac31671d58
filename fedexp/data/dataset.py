"""The Dataset that every source of examples returns."""

import zlib
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path

import torch
from torch import Tensor

from fedexp.data.transform import Transform, are_tokens
from fedexp.errors import require

_TOKENS = (torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class Dataset:
    """All examples of a source. x: uint8 images [n, c, h, w] (or floating features [n, ...], or tokens: int16, int32 or
    int64 [n, length]), y: int64 [n].

    owners: the client of each training example [n], if the source knows it (the natural partition); -1: unknown.
    source: the file or folder that was read, which errors name.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    transform: Transform
    owners: Tensor | None = None
    class_names: list[str] | None = None
    source: str | Path | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError where examples, labels, owners, class names and transform do not fit one another."""
        whole = isinstance(self.classes, Integral)
        self._require(whole, f"has {self.classes!r} classes; their number must be an int")
        self._check_part("train", self.train_x, self.train_y)
        self._check_part("test", self.test_x, self.test_y)
        self._check_owners()
        types = [x.dtype for x in (self.train_x, self.test_x)]
        right = f"train and test examples are {' and '.join(map(_name, types))}; uint8 alone is divided by 255"
        self._require(types[0] == types[1] or torch.uint8 not in types, f"{right}, so both must be uint8, or neither")
        words = self.class_names is None or isinstance(self.class_names, list | tuple)
        words = words and all(isinstance(name, str) for name in self.class_names or ())
        self._require(words, "has class names that are no list of words")
        named = self.classes if self.class_names is None else len(self.class_names)
        self._require(named == self.classes, f"has {named} class names; {self.classes} classes need as many")
        self._check_transform()

    @cached_property
    def checksum(self) -> int:
        """Of all examples and labels: tells whether a run that goes on still has the data that it was begun with."""
        found = 0
        for part in (self.train_x, self.train_y, self.test_x, self.test_y):
            found = zlib.crc32(part.contiguous().flatten().view(torch.uint8).numpy().data, found)
        return found

    def _require(self, holds: bool, right: str) -> None:
        require(holds, "dataset", self.name, right if self.source is None else f"{self.source}: {right}")

    def _check_part(self, part: str, x: Tensor, y: Tensor) -> None:
        """Check for any source that there is a label for each example, that labels are classes and values finite."""
        self._require(isinstance(x, Tensor) and isinstance(y, Tensor), f"{part} examples and labels must be tensors")
        self._require(len(y) > 0, f"has no {part} examples")
        self._require(y.dim() == 1, f"{part} labels must be one number per example, not of shape {tuple(y.shape)}")
        self._require(len(x) == len(y), f"has {len(x)} {part} examples but {len(y)} {part} labels; each needs one")
        low, high = y.aminmax()
        self._require(
            y.dtype == torch.int64 and bool(low >= 0) and bool(high < self.classes),
            f"{part} labels must be int64 from 0 to {self.classes - 1}, for {self.classes} classes; they are "
            f"{_name(y.dtype)} from {low} to {high}",
        )
        shape = tuple(x.shape[1:])
        self._require(min(shape, default=0) > 0, f"has {part} examples of shape {shape}, which are empty")
        tokens = x.dtype in _TOKENS and x.dim() == 2
        self._require(
            x.dtype == torch.uint8 or x.is_floating_point() or tokens,
            f"{part} examples must be uint8 (from 0 to 255) or floating, not {_name(x.dtype)}; or tokens, int16 to "
            "int64 of shape [n, length]",
        )
        self._require(not tokens or int(x.min()) >= 0, f"has {part} tokens below 0")
        # In the precision of training, or nearly; NaN is both extremes.
        finite = x.dtype == torch.uint8 or all(bool(each.float().isfinite()) for each in x.aminmax())
        self._require(finite, f"has {part} examples that are not finite")

    def _check_owners(self) -> None:
        if self.owners is None:
            return
        shape, n = tuple(self.owners.shape), len(self.train_y)
        self._require(shape == (n,), f"has owners of shape {shape}; each of {n} train examples needs one")
        integers = not (self.owners.is_floating_point() or self.owners.is_complex() or self.owners.dtype == torch.bool)
        self._require(
            integers and int(self.owners.min()) >= -1,  # an unsigned type has no -1 to compare with
            f"owners must be integers from 0, or -1 for unknown; they are {_name(self.owners.dtype)} from "
            f"{self.owners.min()}",
        )
        self._require(bool((self.owners >= 0).any()), "has owners that are all unknown; leave them out")

    def _check_transform(self) -> None:
        shape, other = tuple(self.train_x.shape[1:]), tuple(self.test_x.shape[1:])
        require(
            len(shape) == 3 or not self.transform.augments, "dataset.transform", self.name,
            f"crops, flips and rotations need images (channels, height, width), not examples of shape {shape}",
        )  # fmt: skip
        self._require(
            self.transform.shape(shape) == self.transform.shape(other),
            f"train examples are of shape {shape}, test examples of {other}; they must be alike",
        )
        require(
            not are_tokens(self.train_x) or self.transform == Transform(), "dataset.transform", self.name,
            "has tokens, of which nothing can be scaled or changed; leave it as it is",
        )  # fmt: skip
        mean, std = self.transform.mean, self.transform.std
        channels = self.train_x.shape[1]
        right = f"must have one number or one for each of {self.name}'s {channels} channels"
        require(len(mean) in (0, 1, channels), "dataset.transform.mean", mean, right)
        require(not mean or len(std) in (1, channels), "dataset.transform.std", std, right)
        crop, sides = self.transform.crop, [*shape[1:], *other[1:]]
        require(
            crop is None or 1 <= crop <= min(sides, default=0), "dataset.transform.crop", crop,
            f"must be null or from 1 to the shortest side of {self.name}'s images, {min(sides, default=0)}: test "
            "images are cropped without dataset.transform.pad",
        )  # fmt: skip
        pad = self.transform.pad
        require(pad < min(sides, default=1), "dataset.transform.pad", pad, "must be below the images' shortest side")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
