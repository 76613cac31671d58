"""Convolutions of a stack of models on a GPU: each model has its own weights and its own images.

PyTorch computes them as one convolution of as many groups as there are models, for which its library has no fast
kernels where a model's channels are few. Here each is a matrix product whose entries are read from the images as they
are needed, in Triton, which comes with PyTorch on Linux. Sums are made in a fixed order, so that results can
be repeated bit for bit. fedexp.engine.convolutions measures where this is faster.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.nn.grad import conv2d_weight

# The sizes that were fastest on an H100.
_ENTRIES = tl.constexpr(16)  # of a weight, multiplied at once
_SUMMED = tl.constexpr(32)  # pixels whose share in a weight's gradient is computed at once
_SHARE = 512  # pixels, of all of a model's images, summed by one program


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """Like torch.nn.functional.conv2d, with stride 1: x [B, C, H, W], weight [O, C, r, r]; to be vectorized by
    torch.func.vmap over a stack. Differentiable once."""
    if torch.is_autocast_enabled("cuda"):
        kind = torch.get_autocast_dtype("cuda")
        x, weight, bias = x.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
    y = _Convolution.apply(x, weight, padding)
    return y if bias is None else y + bias[:, None, None]


class _Convolution(Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: int) -> Tensor:
        return F.conv2d(x, weight, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        x, weight, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        side, dx, dweight = weight.shape[-1], None, None
        if ctx.needs_input_grad[0]:
            turned = weight.flip(-1, -2).transpose(-3, -4)
            dx = _Convolution.apply(dy, turned, side - 1 - ctx.padding)
        if ctx.needs_input_grad[1]:
            dweight = _OfWeight.apply(x, dy, ctx.padding, side)
        return dx, dweight, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, int]:
        if in_dims[1] is None:  # models that share their weights are one
            y = F.conv2d(x.movedim(in_dims[0], 0).flatten(0, 1), weight, padding=padding)
            return y.unflatten(0, (info.batch_size, -1)), 0
        x, weight = (_rows(info, axis, each) for axis, each in zip(in_dims, (x, weight)))
        return convolved(x, weight, padding), 0


class _OfWeight(Function):
    """The gradient of a weight, from an input and the gradient of its convolution."""

    @staticmethod
    def forward(x: Tensor, dy: Tensor, padding: int, side: int) -> Tensor:
        return conv2d_weight(x, [dy.shape[1], x.shape[1], side, side], dy, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Nothing is kept: it has no derivative."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        raise RuntimeError("this form of a convolution has no second derivative; use hardware.convolution=direct")

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, dy: Tensor, padding: int, side: int) -> tuple[Tensor, int]:
        x, dy = (_rows(info, axis, each) for axis, each in zip(in_dims, (x, dy)))
        return weight_gradient(x, dy, padding, side), 0


def _rows(info: Any, axis: int | None, tensor: Tensor) -> Tensor:
    """A tensor as a contiguous stack [K, ...]."""
    stack = tensor.expand(info.batch_size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    return stack.contiguous()


def convolved(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    """x [K, B, C, H, W], weight [K, O, C, r, r], both contiguous: [K, B, O, h, v]."""
    (count, images, channels, height, width), (outputs, side) = x.shape, (weight.shape[1], weight.shape[-1])
    high, wide = height + 2 * padding - side + 1, width + 2 * padding - side + 1
    y = x.new_empty(count, images, outputs, high, wide)
    rows = min(64, max(16, triton.next_power_of_2(outputs)))
    pixels = 256 if x.dtype == torch.float32 else 128
    _convolve[triton.cdiv(images * high * wide, pixels), triton.cdiv(outputs, rows), count](
        x, weight, y, images, channels, height, width, outputs, high, wide, side, padding, rows, pixels, _precision(),
    )  # fmt: skip
    return y


def weight_gradient(x: Tensor, dy: Tensor, padding: int, side: int) -> Tensor:
    """x [K, B, C, H, W], dy [K, B, O, h, v], both contiguous: [K, O, C, r, r]."""
    (count, images, channels, height, width), (outputs, high, wide) = x.shape, dy.shape[2:]
    shares = triton.cdiv(images * high * wide, _SHARE)
    parts = x.new_empty(shares, count, outputs, channels, side, side, dtype=torch.float32)
    rows = min(64, max(16, triton.next_power_of_2(outputs)))
    columns = min(64, max(16, triton.next_power_of_2(channels * side * side)))
    tiles = triton.cdiv(channels * side * side, columns)
    _weigh[triton.cdiv(outputs, rows) * tiles, shares, count](
        x, dy, parts, count, images, channels, height, width, outputs, high, wide, side, padding, _SHARE, rows, columns,
        _precision(),
    )  # fmt: skip
    return parts.sum(0).to(x.dtype)


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


@triton.jit
def _convolve(
    x, weight, y, images,
    channels: tl.constexpr, height: tl.constexpr, width: tl.constexpr, outputs: tl.constexpr, high: tl.constexpr,
    wide: tl.constexpr, side: tl.constexpr, padding: tl.constexpr, rows: tl.constexpr, pixels: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """A tile of one model's result: `rows` output channels of `pixels` pixels."""
    model, entries = tl.program_id(2).to(tl.int64), channels * side * side
    output = tl.program_id(1) * rows + tl.arange(0, rows)
    pixel = tl.program_id(0) * pixels + tl.arange(0, pixels)
    image, place = pixel // (high * wide), pixel % (high * wide)
    i, j, real = place // wide - padding, place % wide - padding, pixel < images * high * wide
    x += model * images * channels * height * width
    weight += model * outputs * entries
    total = tl.zeros((rows, pixels), tl.float32)
    for first in range(0, entries, _ENTRIES):
        entry = first + tl.arange(0, _ENTRIES)
        known = (output < outputs)[:, None] & (entry < entries)[None, :]
        factors = tl.load(weight + output[:, None] * entries + entry[None, :], known, 0.0)
        channel, u, v = entry // (side * side), entry % (side * side) // side, entry % side
        row, column = i[None, :] + u[:, None], j[None, :] + v[:, None]
        inside = (entry < entries)[:, None] & real[None, :]
        inside = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        where = ((image[None, :] * channels + channel[:, None]) * height + row) * width + column
        total = tl.dot(factors, tl.load(x + where, inside, 0.0), total, input_precision=precision)
    y += model * images * outputs * high * wide
    where = (image[None, :] * outputs + output[:, None]) * (high * wide) + place[None, :]
    tl.store(y + where, total.to(y.dtype.element_ty), (output < outputs)[:, None] & real[None, :])


@triton.jit
def _weigh(
    x, dy, parts, count, images,
    channels: tl.constexpr, height: tl.constexpr, width: tl.constexpr, outputs: tl.constexpr, high: tl.constexpr,
    wide: tl.constexpr, side: tl.constexpr, padding: tl.constexpr, share: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of one model's weight, summed over a share of all pixels of its images."""
    model, entries = tl.program_id(2).to(tl.int64), channels * side * side
    tiles: tl.constexpr = (entries + columns - 1) // columns
    output = tl.program_id(0) // tiles * rows + tl.arange(0, rows)
    entry = tl.program_id(0) % tiles * columns + tl.arange(0, columns)
    channel, u, v = entry // (side * side), entry % (side * side) // side - padding, entry % side - padding
    x += model * images * channels * height * width
    dy += model * images * outputs * high * wide
    total = tl.zeros((rows, columns), tl.float32)
    for first in range(0, share, _SUMMED):
        pixel = tl.program_id(1) * share + first + tl.arange(0, _SUMMED)
        image, place, real = pixel // (high * wide), pixel % (high * wide), pixel < images * high * wide
        i, j = place // wide, place % wide
        where = (image[None, :] * outputs + output[:, None]) * (high * wide) + place[None, :]
        gradient = tl.load(dy + where, (output < outputs)[:, None] & real[None, :], 0.0)
        row, column = i[None, :] + u[:, None], j[None, :] + v[:, None]
        inside = (entry < entries)[:, None] & real[None, :]
        inside = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        where = ((image[None, :] * channels + channel[:, None]) * height + row) * width + column
        total = tl.dot(gradient, tl.trans(tl.load(x + where, inside, 0.0)), total, input_precision=precision)
    parts += (tl.program_id(1) * count + model) * outputs * entries
    known = (output < outputs)[:, None] & (entry < entries)[None, :]
    tl.store(parts + output[:, None] * entries + entry[None, :], total, known)
