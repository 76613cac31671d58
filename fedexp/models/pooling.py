"""Max-pooling in windows of 2x2 on a CPU, to the same numbers as PyTorch's own.

PyTorch's kernel compares as many channels at once as a register holds, and the others one by one, so that with few
channels (LeNet and SimpleCNN have six) it can take as long as a convolution. Here whole rows are compared. Of several
equal maxima the first one gets the gradient, as in PyTorch.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

_FEW = 8  # channels: what fits into a register of 32 bytes in float32
_MANY = 2**16  # numbers: in smaller batches PyTorch's single operation is faster than the dozen here


def pooled(x: Tensor) -> Tensor:
    """The maxima of x [B, C, H, W] in windows of 2x2: [B, C, H // 2, W // 2]; H and W at least 2."""
    if not needs_gradient(x):
        return torch.maximum(*_halves(torch.maximum(*_halves(x, 2)), 3))
    x = x.contiguous(memory_format=torch.channels_last)
    return _Pooled.apply(x) if x.shape[1] < _FEW and x.numel() >= _MANY else F.max_pool2d(x, 2)


def needs_gradient(x: Tensor) -> bool:
    """Whether what is computed from x now may be differentiated."""
    return torch.is_grad_enabled() and x.requires_grad


def _halves(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """The even and the odd entries along a dimension, without a last one that has no partner."""
    pairs = x.shape[dim] // 2
    return x.narrow(dim, 0, 2 * pairs).unflatten(dim, (pairs, 2)).unbind(dim + 1)


@cache
def _corners(height: int, width: int, dtype: torch.dtype) -> Tensor:
    """The position of each window's first entry in a picture: [1, 1, height // 2, width // 2]."""
    down, across = (2 * torch.arange(side // 2, dtype=dtype) for side in (height, width))
    return (down[:, None] * width + across)[None, None]


class _Pooled(Function):
    """Finds the positions of the maxima for PyTorch's own gradient. Whether one entry is larger than another is written
    as 1 or 0 in the numbers' own type, which takes a CPU half as long as a bool does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        numbers = x if x.dtype in (torch.float32, torch.float64) else x.float()  # others are compared slowly
        left, right = _halves(numbers, 3)
        rows, on_right = torch.maximum(left, right), torch.gt(right, left, out=torch.empty_like(left))
        (upper, lower), (above, below) = _halves(rows, 2), _halves(on_right, 2)
        is_below = torch.gt(lower, upper, out=torch.empty_like(upper))
        within = torch.addcmul(above, is_below, (below - above).add_(x.shape[3]))
        where = within.add_(_corners(*x.shape[2:], within.dtype)).long()
        ctx.save_for_backward(x, where)
        return torch.maximum(upper, lower).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        x, where = ctx.saved_tensors
        two = [2, 2]
        return torch.ops.aten.max_pool2d_with_indices_backward(dy, x, two, two, [0, 0], [1, 1], False, where)
