"""How a batch of stored examples is prepared on the device: scaled, normalised, and in training augmented."""

from dataclasses import dataclass, field
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.errors import require
from fedexp.randomness import uniform

_PADDINGS = ("constant", "reflect", "replicate", "circular")


def are_tokens(x: Tensor) -> bool:
    """Whether examples are tokens, whole numbers that stand for something, and not numbers to compute with."""
    return not (x.dtype == torch.uint8 or x.is_floating_point())


@dataclass(frozen=True)
class Transform:
    """How stored examples become model input, a batch at a time, on the device.

    Stored uint8 is scaled to [0, 1] first. `crop` is the side of a random crop out of the image padded by
    `pad` (centre crop of the unpadded image at test), `flip` a random horizontal flip, `rotate` the largest angle of
    a random rotation in degrees, `standardise` gives every image mean 0 and deviation 1 (TensorFlow's per-image rule);
    then follows (x - mean) / std per channel, where a single number stands for all channels. Augmentation is drawn
    anew for every batch, from its keys.
    """

    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    crop: int | None = None
    pad: int = 0
    pad_mode: str = "constant"
    flip: bool = False
    rotate: float = 0.0
    standardise: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that cannot work, or that has no effect without another one."""
        key = "dataset.transform"
        mean, std = (torch.tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        require(bool(mean.isfinite().all()), f"{key}.mean", self.mean, "must be finite in single precision")
        divides = std.isfinite() & std.reciprocal().isfinite()
        reason = "must be finite and not 0 in single precision: examples are divided by it"
        require(bool(divides.all()), f"{key}.std", self.std, reason)
        require(bool(self.mean) or not self.std, f"{key}.std", self.std, f"has no effect without {key}.mean")
        require(self.pad >= 0, f"{key}.pad", self.pad, "must be at least 0")
        require(self.crop is not None or self.pad == 0, f"{key}.pad", self.pad, f"has no effect without {key}.crop")
        require(self.pad_mode in _PADDINGS, f"{key}.pad_mode", self.pad_mode, f"must be one of {', '.join(_PADDINGS)}")
        pads = self.pad > 0 or self.pad_mode == "constant"
        require(pads, f"{key}.pad_mode", self.pad_mode, f"has no effect without {key}.pad; use constant")
        require(0 <= self.rotate <= 180, f"{key}.rotate", self.rotate, "must be from 0 to 180 degrees, either way")

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one prepared example."""
        return stored if self.crop is None else (stored[0], self.crop, self.crop)

    @property
    def augments(self) -> bool:
        return self.crop is not None or self.flip or self.rotate > 0

    def __call__(self, x: Tensor, keys: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """Prepare x [n, ...]: augmented if there are keys [n], one per example, otherwise as for testing. Tokens, which
        are integers other than uint8, are only converted to int64."""
        if are_tokens(x):
            return x.long()
        x = x.to(dtype).div_(255) if x.dtype == torch.uint8 else x.to(dtype)
        if self.augments:
            x = self._augment(x, keys) if keys is not None else self._centre(x)
        if self.standardise:
            flat = x.flatten(1)
            floor = flat.shape[1] ** -0.5
            deviation = flat.std(1, correction=0).clamp_min(floor)
            x = ((flat - flat.mean(1, keepdim=True)) / deviation[:, None]).view_as(x)
        if self.mean:
            shape = (-1, *[1] * (x.dim() - 2))
            mean, std = (_on_device(tuple(values), x.dtype, x.device).view(shape) for values in (self.mean, self.std))
            x = (x - mean) / std
        return x

    def _centre(self, x: Tensor) -> Tensor:
        if self.crop is None or x.shape[-2:] == (self.crop, self.crop):
            return x
        top, left = ((side - self.crop) // 2 for side in x.shape[-2:])
        return x[..., top : top + self.crop, left : left + self.crop]

    def _augment(self, x: Tensor, keys: Tensor) -> Tensor:
        chance = uniform(keys, 4)
        flipped = (chance[:, 2] < 0.5).view(-1, 1) if self.flip else None
        if self.crop is not None:
            x = self._cropped(x, chance, flipped)
        elif flipped is not None:
            x = torch.where(flipped[..., None, None], x.flip(-1), x)
        if self.rotate:
            x = _rotate(x, (chance[:, 3] * 2 - 1) * self.rotate)
        return x

    def _cropped(self, x: Tensor, chance: Tensor, flipped: Tensor | None) -> Tensor:
        """Crops of x [n, c, h, w] out of its padded images, some of them flipped [n, 1]: every pixel is fetched once,
        from where it lies in x. chance: fractions [n, 2 or more] of the way down and across."""
        if self.pad and self.pad_mode == "constant":
            x = F.pad(x, (self.pad,) * 4)
        down, across = (self._places(way, side) for way, side in zip(chance.T, x.shape[-2:]))
        if flipped is not None:
            across = torch.where(flipped, across.flip(1), across)
        places = (down[:, :, None] * x.shape[3] + across[:, None]).flatten(1)
        crops = x.flatten(2).gather(2, places[:, None].expand(-1, x.shape[1], -1))
        return crops.unflatten(2, (self.crop, self.crop))

    def _places(self, way: Tensor, side: int) -> Tensor:
        """Where the pixels of crops lie along a side of the unpadded image: int64 [n, crop]."""
        known = _unpadded(side, 0 if self.pad_mode == "constant" else self.pad, self.pad_mode, way.device)
        first = (way * (len(known) - self.crop + 1)).long()
        return known[first[:, None] + torch.arange(self.crop, device=way.device)]


@cache
def _on_device(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A constant on the device, cached: sending it with every batch would make a GPU wait."""
    return torch.tensor(values, dtype=dtype, device=device)


@cache
def _unpadded(side: int, pad: int, mode: str, device: torch.device) -> Tensor:
    """For each position along a padded side, the one in the image whose value it has: int64 [side + 2 pad]."""
    places = torch.arange(side, dtype=torch.float64).view(1, 1, -1)
    return (F.pad(places, (pad, pad), mode=mode) if pad else places).flatten().long().to(device)


def _rotate(x: Tensor, degrees: Tensor) -> Tensor:
    """x [n, c, h, w] rotated about its centre, nearest pixel, zeros outside (as torchvision's default)."""
    angle = degrees.to(x.dtype).deg2rad()
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    height, width = x.shape[-2:]  # affine_grid measures each axis in halves of its own side
    across = torch.stack([cos, -sin * (height / width), zero], 1)
    down = torch.stack([sin * (width / height), cos, zero], 1)
    theta = torch.stack([across, down], 1)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="nearest", padding_mode="zeros", align_corners=False)
