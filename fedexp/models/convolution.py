"""Convolutions with fewer multiplications, for a client that trains alone on a CPU.

A 5x5 convolution of many channels is one large matrix product of 25 multiplications an output. In Toom-Cook's
form (Winograd's; Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4) an
output tile of 4x4 takes an input tile of 8x8 and 64 multiplications: four an output, besides three linear
transforms that do not grow with the number of channels on the other side. The gradients are the transposed
maps, computed the same way. In float32 the result differs from a direct convolution's by rounding, about 1e-5
of its largest value (tests/models/test_convolution.py); `hardware.convolution=direct` does without.
"""

from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

TILE = 4  # outputs a side of a tile
_POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))
_TILES_AT_ONCE = 128  # large enough for matrix products, small enough for a core's cache


def pays(x: Tensor, weight: Tensor, padding: int) -> bool:
    """Whether tiles beat a direct convolution of stride 1, forwards and backwards, by multiplications alone.

    They must be 1.7 times fewer, where one of a transform counts four times, since memory limits it (measured
    over the layers of this package's models on one core; between 1.1 and 2.3 times faster from there on).
    """
    (count, _, height, width), (outputs, channels, r, other) = x.shape, weight.shape
    high, wide, n = height + 2 * padding - r + 1, width + 2 * padding - r + 1, TILE + r - 1
    if r != other or r not in (3, 5) or min(high, wide) < TILE or x.dtype != torch.float32 or x.device.type != "cpu":
        return False
    tiles = count * -(-high // TILE) * -(-wide // TILE)
    products = 3 * n * n * channels * outputs
    transforms = 2 * (2 * n**3 * channels + (n + TILE) * n * TILE * outputs)
    weights = 2 * (n + r) * n * r * channels * outputs
    direct = 3 * count * high * wide * r * r * channels * outputs
    return direct > 1.7 * (tiles * (products + 4 * transforms) + 4 * weights)


def tiled(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """Cross-correlation of stride 1, as torch.nn.functional.conv2d: x [B, C, H, W], weight [O, C, r, r]."""
    return _Tiled.apply(x, weight, bias, padding)


@cache
def _transforms(r: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Of the input [n, n], the weight [n, r] and the output [4, n], n = r + 3; each is applied to both sides."""
    n = TILE + r - 1
    points = [Fraction(point) for point in _POINTS[: n - 1]]

    def values(degree: int) -> list[list[Fraction]]:  # a polynomial's values at the points, the last at infinity
        return [[p**j for j in range(degree)] for p in points] + [[Fraction(j == degree - 1) for j in range(degree)]]

    inverse = torch.linalg.inv(_matrix(values(n)))
    weight, output = _matrix(values(r)), _matrix(values(TILE)).T
    scale = weight.abs().sum(1, keepdim=True)  # balances the two sides, so that neither rounds coarsely
    into, of_weight, out = (side.to(dtype).contiguous() for side in (inverse.T * scale, weight / scale, output))
    return into, of_weight, out


def _both(side: Tensor, x: Tensor) -> Tensor:
    """side [a, b] on the first two dimensions of x [b, b, ...]: [a, a, the others as one]."""
    rows = (side @ x.reshape(len(x), -1)).view(len(side), x.shape[1], -1)
    return torch.matmul(side, rows)


def _matrix(rows: list[list[Fraction]]) -> Tensor:
    return torch.tensor([[float(entry) for entry in row] for row in rows], dtype=torch.float64)


class _Tiled(Function):
    """[positions, tiles, channels] throughout: a position of the transformed tile is one matrix product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
        (count, channels, height, width), (outputs, _, r, _) = x.shape, weight.shape
        into, of_weight, out = _transforms(r, x.dtype)
        n = TILE + r - 1
        high, wide = height + 2 * padding - r + 1, width + 2 * padding - r + 1
        down, across = -(-high // TILE), -(-wide // TILE)
        kernel = _both(of_weight, weight.permute(2, 3, 0, 1)).view(n * n, outputs, channels)
        padded = x.new_zeros(count, TILE * down + r - 1, TILE * across + r - 1, channels)
        padded[:, padding : padding + height, padding : padding + width] = x.permute(0, 2, 3, 1)
        y = x.new_empty(count, high, wide, outputs)
        step = -(-_TILES_AT_ONCE // (down * across))
        kept = []
        for first in range(0, count, step):
            tiles = padded[first : first + step].unfold(1, n, TILE).unfold(2, n, TILE)  # [b, down, across, C, n, n]
            kept.append(_both(into, tiles.permute(4, 5, 0, 1, 2, 3)).view(n * n, -1, channels))
            product = torch.bmm(kept[-1], kernel.transpose(1, 2)).view(n, n, -1)
            part = _both(out, product).view(TILE, TILE, -1, down, across, outputs).permute(2, 3, 0, 4, 1, 5)
            part = part.reshape(-1, TILE * down, TILE * across, outputs)[:, :high, :wide]
            if bias is None:
                y[first : first + step] = part
            else:
                torch.add(part, bias, out=y[first : first + step])
        ctx.save_for_backward(kernel, *kept)
        ctx.sizes = (padding, r, height, width, down, across, step, bias is not None)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        kernel, *kept = ctx.saved_tensors
        padding, r, height, width, down, across, step, biased = ctx.sizes
        (squares, outputs, channels), n = kernel.shape, TILE + r - 1
        into, of_weight, out = _transforms(r, dy.dtype)
        dy = dy.permute(0, 2, 3, 1)
        dkernel = torch.zeros_like(kernel)
        dx = dy.new_empty(len(dy), height, width, channels) if ctx.needs_input_grad[0] else None
        for first, transformed in zip(range(0, len(dy), step), kept):
            part = dy[first : first + step]
            full = part.new_zeros(len(part), TILE * down, TILE * across, outputs)
            full[:, : part.shape[1], : part.shape[2]] = part
            cut = full.view(-1, down, TILE, across, TILE, outputs).permute(2, 4, 0, 1, 3, 5)
            dproduct = _both(out.T, cut).view(squares, -1, outputs)
            dkernel.baddbmm_(dproduct.transpose(1, 2), transformed)
            if dx is not None:
                dtiles = _both(into.T, torch.bmm(dproduct, kernel).view(n, n, -1))
                dtiles = dtiles.view(n, n, len(part), down, across, channels)
                whole = _overlap(dtiles, r)
                dx[first : first + step] = whole[:, padding : padding + height, padding : padding + width]
        dweight = _both(of_weight.T, dkernel.view(n, n, -1)).view(r, r, outputs, channels).permute(2, 3, 0, 1)
        dbias = dy.sum((0, 1, 2)) if biased else None
        return None if dx is None else dx.permute(0, 3, 1, 2), dweight.contiguous(), dbias, None


def _overlap(tiles: Tensor, r: int) -> Tensor:
    """Add overlapping tiles [n, n, b, down, across, C], 4 apart, into [b, height, width, C], rounded up to fours."""
    n, _, count, down, across, channels = tiles.shape
    blocks = -(-n // TILE)  # a tile touches that many blocks of 4 a side
    whole = tiles.new_zeros(count, down + blocks - 1, TILE, across + blocks - 1, TILE, channels)
    for i in range(blocks):
        for j in range(blocks):
            piece = tiles[TILE * i : TILE * (i + 1), TILE * j : TILE * (j + 1)].permute(2, 3, 0, 4, 1, 5)
            whole[:, i : i + down, : piece.shape[2], j : j + across, : piece.shape[4]] += piece
    return whole.view(count, TILE * (down + blocks - 1), TILE * (across + blocks - 1), channels)
