"""Convolutions with fewer multiplications, for a client that trains alone on a CPU.

A 5x5 convolution of many channels is one large matrix product with 25 multiplications per output and input channel. In
the form of Toom and Cook (Winograd's; Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016,
section 4) an output tile of 4x4 takes an input tile of 8x8 and 64 multiplications: four per output (3.24 in tiles of
5x5), besides three linear transforms. The cost of transforming the input does not grow with the number of output
channels, nor that of the output with the number of input channels. The gradients are the transposed maps, computed the
same way. In float32 the result differs from a direct convolution's by rounding, about 1e-5 of its largest value
(tests/models/test_convolution.py); `hardware.convolution=direct` switches this off.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_TILES = {3: (4,), 5: (4, 5)}  # by kernel side: tile sides; larger tiles that save time err by 2e-5 and more
_POINTS = {  # by the side of an input tile: where polynomials are evaluated, besides infinity
    6: (0, 1, -1, 2, -2),
    8: (0, 1, -1, 2, -2, 0.5, -0.5),
    9: (0.29, -0.29, 0.7, -0.7, 1.13, -1.13, 2.11, -2.11),  # found by search; simple fractions err four times as much
}
_TILES_AT_ONCE = 512  # large enough for the threads of a matrix product, small enough for a cache


def channels_last(tensor: Tensor) -> Tensor:
    """Images or weights, of four dimensions, in the memory format in which convolutions on a CPU are fastest; any other
    tensor as it is."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def laid_out(tensor: Tensor) -> Tensor:
    """A tensor of four dimensions, as weights [O, C, r, r] are, in the memory format in which convolutions on a CPU
    take weights and give their gradients: in another, every step would copy both. Other tensors stay as they are, and
    so do those in double precision, for which PyTorch has other convolutions."""
    return channels_last(tensor) if tensor.dtype == torch.float32 and tensor.device.type == "cpu" else tensor


def tile_sizes(x: Tensor, weight: Tensor, padding: int) -> list[int]:
    """Sides of the tiles in which a convolution of stride 1 can be computed; none where tiles are never faster: with
    few channels, or on a device other than a CPU. fedexp.engine.convolutions measures which is the fastest.
    """
    (_, _, height, width), (outputs, channels, r, other) = x.shape, weight.shape
    sides = [side + 2 * padding - r + 1 for side in (height, width)]
    if r != other or min(outputs, channels) < 16 or x.dtype != torch.float32 or x.device.type != "cpu":
        return []
    return [tile for tile in _TILES.get(r, ()) if tile <= min(sides)]


def tiled(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, tile: int) -> Tensor:
    """Cross-correlation of stride 1, like torch.nn.functional.conv2d: x [B, C, H, W], weight [O, C, r, r].

    tile: one of tile_sizes.
    """
    return _Tiled.apply(x, weight, bias, padding, tile)


@cache
def _transforms(tile: int, r: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The matrices that transform the input [n, n], the weight [n, r] and the output [tile, n], n = tile + r - 1. Each
    is applied to both dimensions of a tile."""
    n = tile + r - 1
    points = torch.tensor(_POINTS[n], dtype=torch.float64)

    def values(degree: int) -> Tensor:  # a polynomial's values at the points, the last at infinity
        at_infinity = torch.arange(degree, dtype=torch.float64) == degree - 1
        return torch.cat([points[:, None] ** torch.arange(degree), at_infinity[None]])

    inverse, weight, output = torch.linalg.inv(values(n)), values(r), values(tile).T
    scale = weight.abs().sum(1, keepdim=True)  # balances input and weight, so that neither rounds coarsely
    into, of_weight, out = (side.to(dtype).contiguous() for side in (inverse.T * scale, weight / scale, output))
    return into, of_weight, out


def _both(side: Tensor, x: Tensor) -> Tensor:
    """The matrix `side` [a, b] applied to the first two dimensions of x [b, b, ...]: [a, a, the others as one]."""
    rows = (side @ x.reshape(len(x), -1)).view(len(side), x.shape[1], -1)
    return torch.matmul(side, rows)


class _Tiled(Function):
    """Tensors are [positions, tiles, channels] throughout: each position in a transformed tile is a matrix product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, tile: int) -> Tensor:
        (count, channels, height, width), (outputs, _, r, _) = x.shape, weight.shape
        into, of_weight, out = _transforms(tile, r, x.dtype)
        n = tile + r - 1
        high, wide = height + 2 * padding - r + 1, width + 2 * padding - r + 1
        down, across = -(-high // tile), -(-wide // tile)
        kernel = _both(of_weight, weight.permute(2, 3, 0, 1)).view(n * n, outputs, channels)
        padded = x.new_zeros(count, tile * down + r - 1, tile * across + r - 1, channels)
        padded[:, padding : padding + height, padding : padding + width] = x.permute(0, 2, 3, 1)
        y = x.new_empty(count, high, wide, outputs)
        step = -(-_TILES_AT_ONCE // (down * across))
        kept = []
        for first in range(0, count, step):
            tiles = padded[first : first + step].unfold(1, n, tile).unfold(2, n, tile)  # [b, down, across, C, n, n]
            kept.append(_both(into, tiles.permute(4, 5, 0, 1, 2, 3)).view(n * n, -1, channels))
            product = torch.bmm(kept[-1], kernel.transpose(1, 2)).view(n, n, -1)
            part = _both(out, product).view(tile, tile, -1, down, across, outputs).permute(2, 3, 0, 4, 1, 5)
            part = part.reshape(-1, tile * down, tile * across, outputs)[:, :high, :wide]
            if bias is None:
                y[first : first + step] = part
            else:
                torch.add(part, bias, out=y[first : first + step])
        ctx.save_for_backward(x, weight, kernel, *kept)
        ctx.sizes = (padding, tile, r, height, width, down, across, step, bias is not None)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        x, weight, kernel, *kept = ctx.saved_tensors
        padding, tile, r, height, width, down, across, step, biased = ctx.sizes
        if torch.is_grad_enabled():  # create_graph: what follows has no derivative, and PyTorch would take it for 0
            needed = [ctx.needs_input_grad[0], True, biased]
            around, ones, outputs = [padding] * 2, [1, 1], [len(weight)] if biased else None
            found = torch.ops.aten.convolution_backward(
                dy, x, weight, outputs, ones, around, ones, False, [0, 0], 1, needed
            )  # fmt: skip
            return *found, None, None
        (squares, outputs, channels), n = kernel.shape, tile + r - 1
        into, of_weight, out = _transforms(tile, r, dy.dtype)
        dy = dy.permute(0, 2, 3, 1)
        dkernel = torch.zeros_like(kernel)
        dx = dy.new_empty(len(dy), height, width, channels) if ctx.needs_input_grad[0] else None
        for first, transformed in zip(range(0, len(dy), step), kept):
            part = dy[first : first + step]
            full = part.new_zeros(len(part), tile * down, tile * across, outputs)
            full[:, : part.shape[1], : part.shape[2]] = part
            cut = full.view(-1, down, tile, across, tile, outputs).permute(2, 4, 0, 1, 3, 5)
            dproduct = _both(out.T, cut).view(squares, -1, outputs)
            dkernel.baddbmm_(dproduct.transpose(1, 2), transformed)
            if dx is not None:
                dtiles = _both(into.T, torch.bmm(dproduct, kernel).view(n, n, -1))
                dtiles = dtiles.view(n, n, len(part), down, across, channels)
                whole = _overlap(dtiles, tile)
                dx[first : first + step] = whole[:, padding : padding + height, padding : padding + width]
        dweight = _both(of_weight.T, dkernel.view(n, n, -1)).view(r, r, outputs, channels).permute(2, 3, 0, 1)
        dbias = dy.sum((0, 1, 2)) if biased else None
        return None if dx is None else dx.permute(0, 3, 1, 2), dweight.contiguous(), dbias, None, None


def _overlap(tiles: Tensor, apart: int) -> Tensor:
    """Add overlapping tiles [n, n, b, down, across, C] into [b, height, width, C], both multiples of `apart`."""
    n, _, count, down, across, channels = tiles.shape
    blocks = -(-n // apart)  # squares of side `apart` that a tile touches, per dimension
    whole = tiles.new_zeros(count, down + blocks - 1, apart, across + blocks - 1, apart, channels)
    for i in range(blocks):
        for j in range(blocks):
            piece = tiles[apart * i : apart * (i + 1), apart * j : apart * (j + 1)].permute(2, 3, 0, 4, 1, 5)
            whole[:, i : i + down, : piece.shape[2], j : j + across, : piece.shape[4]] += piece
    return whole.view(count, apart * (down + blocks - 1), apart * (across + blocks - 1), channels)
