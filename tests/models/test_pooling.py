"""Max-pooling in windows of 2x2 is PyTorch's own: values, gradients, second derivatives, and where it is used."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from fedexp.models.layers import frozen, training
from fedexp.models.pooling import pooled
from fedexp.models.purify import purify

SMALL = [(2, 1, 7, 9), (1, 3, 2, 2), (2, 7, 5, 12), (1, 1, 2, 3), (3, 16, 10, 10), (0, 3, 4, 4)]
LARGE = [(64, 6, 14, 14), (300, 1, 15, 17), (30, 7, 21, 16), (40, 8, 16, 16)]
OTHERS = [
    {"kernel_size": 3, "stride": 2},
    {"kernel_size": 2, "stride": 1},
    {"kernel_size": 2, "padding": 1},
    {"kernel_size": 2, "dilation": 2},
    {"kernel_size": 2, "ceil_mode": True},
    {"kernel_size": (1, 2)},
]


def alone() -> object:
    return training(None, torch.tensor(0), alone=True)


def pictures(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Whole numbers from about -5 to 5, so that many windows have several maxima."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 2).round().to(dtype)


@pytest.mark.parametrize("shape", SMALL + LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_values_and_gradients_are_those_of_pytorch(shape, dtype, layout):
    x = pictures(*shape, dtype=dtype).contiguous(memory_format=layout)
    assert torch.equal(pooled(x), F.max_pool2d(x, 2))
    x.requires_grad_()
    own, pytorch = pooled(x), F.max_pool2d(x, 2)
    assert torch.equal(own, pytorch)
    along = torch.cos(torch.arange(own.numel())).view(own.shape).to(dtype)
    assert torch.equal(*(torch.autograd.grad(y, x, along)[0] for y in (own, pytorch)))


def test_the_first_of_equal_maxima_gets_the_gradient():
    """Each channel is one window; the gradient goes to its first 1, row by row."""
    x = torch.tensor([[[1.0, 1], [1, 1]], [[0, 1], [1, 1]], [[0, 0], [1, 1]], [[0, 0], [0, 1]], [[0, 1], [1, 0]]])
    x = x.repeat(4000, 1, 1, 1).requires_grad_()
    (found,) = torch.autograd.grad(pooled(x).sum(), x)
    assert (found.flatten(2).argmax(2) == torch.tensor([0, 1, 2, 3, 1])).all()
    assert (found.sum((2, 3)) == 1).all()


def test_nan_is_passed_on():
    x = pictures(300, 2, 12, 12)
    x[0, 1, 2, 3] = torch.nan
    expected = F.max_pool2d(x, 2)
    assert torch.allclose(pooled(x), expected, equal_nan=True)
    assert torch.allclose(pooled(x.requires_grad_()), expected, equal_nan=True)


def test_second_derivative():
    found = []
    for pool in (pooled, lambda x: F.max_pool2d(x, 2)):
        x = pictures(100, 3, 16, 16, dtype=torch.float64).requires_grad_()
        (first,) = torch.autograd.grad(pool(x).pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), x)[0])
    assert torch.equal(*found)
    assert found[0].any()


@pytest.mark.parametrize(("shape", "own"), [((64, 7, 16, 16), True), ((64, 8, 16, 16), False), ((3, 7, 8, 8), False)])
def test_with_a_gradient_pytorch_is_as_fast_where_channels_are_many_and_batches_small(shape, own):
    with alone():
        y = purify(nn.MaxPool2d(2))(pictures(*shape).requires_grad_())
    assert ("Pooled" in y.grad_fn.name()) == own


@pytest.mark.parametrize("settings", OTHERS)
@pytest.mark.parametrize("within", [alone, frozen])
def test_other_windows_are_pytorch_s(settings, within):
    x = pictures(2, 3, 7, 7)
    layer = purify(nn.MaxPool2d(**settings))
    expected = nn.MaxPool2d(**settings)(x)
    with within():
        assert torch.equal(layer(x), expected)
        assert torch.equal(layer(x.requires_grad_()), expected)


@pytest.mark.parametrize("within", [alone, frozen])
def test_pictures_that_are_too_small_are_refused_as_by_pytorch(within):
    with within(), pytest.raises(RuntimeError, match="too small"):
        purify(nn.MaxPool2d(2))(pictures(1, 3, 1, 4))


def test_derivatives_of_a_loss_s_own():
    """torch.func.grad and forward mode, which have no rule for a function of our own."""
    layer, x = purify(nn.MaxPool2d(2)), pictures(2, 3, 4, 4)
    reverse = torch.func.grad(lambda x: F.max_pool2d(x, 2).square().sum())(x)
    with forward_ad.dual_level():
        forward = forward_ad.unpack_dual(F.max_pool2d(forward_ad.make_dual(x, x.cos()), 2)).tangent
    with alone():
        assert torch.equal(torch.func.grad(lambda x: layer(x).square().sum())(x), reverse)
        with forward_ad.dual_level():
            assert torch.equal(forward_ad.unpack_dual(layer(forward_ad.make_dual(x, x.cos()))).tangent, forward)
