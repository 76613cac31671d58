"""Convolutions in tiles are convolutions: values and gradients against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from worlds import gap, make_world

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Engine, Hardware, Local
from fedexp.models import Classifier, Model
from fedexp.models.convolution import tile_size, tiled
from fedexp.randomness import generator

CASES = [  # batch, channels, outputs, height, width, kernel, padding, tile
    (3, 16, 20, 14, 14, 5, 2, 5),
    (3, 16, 20, 14, 14, 5, 2, 4),
    (2, 5, 7, 9, 6, 5, 0, 4),
    (2, 5, 7, 12, 9, 5, 0, 5),
    (2, 6, 4, 8, 11, 3, 1, 4),
    (1, 3, 2, 5, 5, 3, 0, 4),
    (60, 32, 64, 16, 16, 5, 2, 4),  # more than one chunk
    (60, 32, 64, 14, 14, 5, 2, 5),
]


def _both(case: tuple[int, ...], dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
    """(tiled, direct) outputs and gradients of input, weight and bias."""
    count, channels, outputs, height, width, kernel, padding, tile = case
    torch.manual_seed(0)
    x = torch.randn(count, channels, height, width, dtype=dtype).requires_grad_()
    weight = (torch.randn(outputs, channels, kernel, kernel, dtype=dtype) / kernel).requires_grad_()
    bias = torch.randn(outputs, dtype=dtype).requires_grad_()
    results = []
    for y in (tiled(x, weight, bias, padding, tile), F.conv2d(x, weight, bias, padding=padding)):
        along = torch.cos(torch.arange(y.numel(), dtype=dtype)).view(y.shape)
        results.append([y, *torch.autograd.grad(y, (x, weight, bias), along)])
    return list(zip(*results))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-5)])
def test_equals_the_direct_convolution(case: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    for fast, direct in _both(case, dtype):
        assert fast.shape == direct.shape
        assert (fast - direct).abs().max() <= tolerance * direct.abs().max()


def test_without_bias_and_without_the_inputs_gradient() -> None:
    x, weight = torch.randn(2, 4, 8, 8, dtype=torch.float64), torch.randn(3, 4, 5, 5, dtype=torch.float64)
    weight.requires_grad_()
    y = tiled(x, weight, None, 2, 4)
    expected = F.conv2d(x, weight, padding=2)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    (fast,), (direct,) = (torch.autograd.grad(out.square().sum(), weight) for out in (y, expected))
    torch.testing.assert_close(fast, direct, rtol=1e-11, atol=1e-11)


def test_chosen_where_channels_are_many_and_types_fit() -> None:
    x, weight = torch.zeros(50, 32, 16, 16), torch.zeros(64, 32, 5, 5)
    assert tile_size(x, weight, 2) == 4
    assert tile_size(x[..., :14, :14], weight, 2) == 5  # nine tiles of 81 products instead of sixteen of 64
    assert tile_size(x, weight[..., :3, :3], 1) == 4
    assert tile_size(x[:, :3], weight[:, :3], 2) is None
    assert tile_size(x.double(), weight.double(), 2) is None
    assert tile_size(x[..., :7, :7], weight, 0) is None  # a tile does not fit
    assert tile_size(x, torch.zeros(64, 32, 1, 1), 0) is None
    assert tile_size(x, torch.zeros(64, 32, 5, 3), 2) is None


@pytest.mark.parametrize("convolution", ["auto", "direct"])
def test_a_client_alone_trains_as_in_a_stack(convolution: str) -> None:
    """In float32 to 1e-4, whether its convolutions are computed in tiles (batch of 8: they are) or directly."""
    world = make_world(sizes=[16, 24], dtype=torch.float32)
    torch.manual_seed(3)
    body = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(4), nn.Flatten()]
    model = Model(Classifier(nn.Sequential(*body), nn.Linear(256, 4)))
    assert tile_size(torch.zeros(8, 32, 8, 8), torch.zeros(64, 32, 5, 5), 2) is not None
    local = Local(epochs=1, batch_size=8, lr=0.05)
    states = []
    for mechanism in ("apart", "together"):
        hardware = Hardware(device="cpu", engine=mechanism, workers="1", convolution=convolution)
        engine = Engine(model, world, local, hardware, seed=0)
        algorithm = FedAvg(2, local)
        state = algorithm.init(world, model, model.params())
        states.append(algorithm.round(state, world, engine, generator(0, "round", 0)))
        engine.close()
    assert 0 < gap(*states) < 1e-4
