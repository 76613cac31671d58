"""Integers of a few bits each, packed into bytes without gaps, so that the bytes counted are those that are sent."""

import torch
import torch.nn.functional as F
from torch import Tensor


def width(largest: int) -> int:
    """How many bits a number from 0 to `largest` takes; at least one."""
    return max(1, largest.bit_length())


def pack(numbers: Tensor, width: int) -> Tensor:
    """Numbers [n] from 0 to 2^width - 1 as uint8 [ceil(n width / 8)], lowest bits first; the last byte is padded."""
    bits = torch.stack([(numbers >> place) & 1 for place in range(width)], -1).to(torch.uint8).flatten()
    return (F.pad(bits, (0, -len(bits) % 8)).view(-1, 8) << _eight(bits)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, count: int, width: int) -> Tensor:
    """The first `count` numbers of those packed by `pack`: int64 [count]."""
    bits = (packed[:, None] >> _eight(packed)) & 1
    places = torch.arange(width, device=packed.device)
    return (bits.flatten()[: count * width].view(count, width).long() << places).sum(1)


def pack_signs(numbers: Tensor) -> Tensor:
    """The signs of numbers [n], one bit each: uint8 [ceil(n / 8)]. The sign of 0 is +1."""
    return pack((numbers >= 0).long(), 1)


def unpack_signs(packed: Tensor, count: int) -> Tensor:
    """The first `count` signs of those packed by `pack_signs`, each 1 or -1: int64 [count]."""
    return 2 * unpack(packed, count, 1) - 1


def _eight(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
