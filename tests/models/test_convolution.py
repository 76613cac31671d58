"""Convolutions in tiles are convolutions: values and gradients against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from worlds import gap, make_world, rounds, start

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Context, Engine, Hardware, Local
from fedexp.models import Classifier, Model
from fedexp.models.convolution import tile_sizes, tiled
from fedexp.models.layers import training

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


def test_only_where_channels_are_many_and_types_fit() -> None:
    x, weight = torch.zeros(50, 32, 16, 16), torch.zeros(64, 32, 5, 5)
    assert tile_sizes(x, weight, 2) == [4, 5]
    assert tile_sizes(x, weight[..., :3, :3], 1) == [4]
    assert tile_sizes(x[..., :8, :8], weight, 0) == [4]  # four rows of outputs: larger tiles do not fit
    assert tile_sizes(x[..., :7, :7], weight, 0) == []
    assert tile_sizes(x[:, :3], weight[:, :3], 2) == []
    assert tile_sizes(x.double(), weight.double(), 2) == []
    assert tile_sizes(x, torch.zeros(64, 32, 1, 1), 0) == []
    assert tile_sizes(x, torch.zeros(64, 32, 5, 3), 2) == []


@pytest.mark.parametrize("tiles", [{}, {"encoder.2": 4}, {"encoder.2": 5}])
def test_a_client_alone_trains_as_in_a_stack(tiles: dict[str, int]) -> None:
    """In float32 to 1e-4, whether its convolutions are computed in tiles or directly."""
    world = make_world(sizes=[16, 24], dtype=torch.float32)
    torch.manual_seed(3)
    body = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(4), nn.Flatten()]
    model = Model(Classifier(nn.Sequential(*body), nn.Linear(256, 4)))
    local = Local(epochs=1, batch_size=8, lr=0.05)
    states = []
    for mechanism in ("workers", "vectorized"):
        hardware = Hardware(device="cpu", engine=mechanism, workers="1")
        engine = Engine(model, world, local, hardware, seed=0)
        ctx = Context(model, world, local, hardware, cohort=2, rounds=1, seed=0, engine=engine)
        first = {**start(FedAvg(), ctx), "tiles": tiles}
        states.append(rounds(FedAvg(), ctx, 1, first)[-1].after)
    assert 0 < gap(*states) < 1e-4


@pytest.mark.parametrize("biased", [True, False])
def test_a_second_derivative_is_that_of_the_direct_convolution(biased: bool) -> None:
    """As of a loss that holds a gradient: PyTorch would silently take a derivative that is missing for 0."""
    torch.manual_seed(0)
    x, weight = torch.randn(2, 4, 8, 8, dtype=torch.float64), torch.randn(3, 4, 5, 5, dtype=torch.float64)
    leaves = [each.requires_grad_() for each in (x, weight, torch.randn(3, dtype=torch.float64))[: 3 if biased else 2]]
    found = []
    for convolve in (lambda x, w, b=None: tiled(x, w, b, 2, 4), lambda x, w, b=None: F.conv2d(x, w, b, padding=2)):
        first = torch.autograd.grad(convolve(*leaves).sin().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(each.square().sum() for each in first), leaves))
    for fast, direct in zip(*found):
        torch.testing.assert_close(fast, direct, rtol=1e-9, atol=1e-9)


def test_a_loss_may_differentiate_by_torch_func() -> None:
    """Tiles have no rule for that: the convolution is then direct."""
    net = nn.Sequential(nn.Conv2d(4, 3, 5, padding=2), nn.Flatten(), nn.Linear(192, 2))
    model, x = Model(net), torch.randn(2, 4, 8, 8)

    def loss(params: dict[str, Tensor]) -> Tensor:
        return model(params, x).square().sum()

    expected = torch.func.grad(loss)(model.params())
    with training(None, torch.tensor(0), alone=True, tiles={"0": 4}):
        found = torch.func.grad(loss)(model.params())
    assert gap({"params": found}, {"params": expected}) < 1e-4
