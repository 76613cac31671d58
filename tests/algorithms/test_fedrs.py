"""FedRS: its neutral setting, one step by hand, its two scalings."""

import pytest
import torch
import torch.nn.functional as F
from worlds import (
    LOCAL,
    assert_mechanisms_agree,
    assert_resumes,
    gap,
    make_context,
    make_model,
    make_world,
    play,
    rounds,
    start,
)

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedrs import FedRS
from fedexp.engine import Local
from fedexp.errors import ConfigError


def lopsided():
    """Client 0 holds classes 0 (6 times), 2 (3 times) and 3 (once) of four; client 1 all."""
    world = make_world([10, 8])
    world.y[world.of(0)] = torch.tensor([0, 0, 0, 0, 0, 0, 2, 2, 2, 3])
    world.y[world.of(1)] = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    return world


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("scaling", ["missing", "proportional"])
@pytest.mark.parametrize("workers", [1, 2])
def test_mechanisms_agree(kind, scaling, workers):
    assert_mechanisms_agree(FedRS(alpha=0.3, scaling=scaling), kind, workers=workers)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_alpha_1_is_fedavg(kind):
    assert gap(play(FedRS(alpha=1.0), kind), play(FedAvg(), kind)) < 1e-12


@pytest.mark.parametrize(
    ("scaling", "scale"),
    [("missing", [1.0, 0.2, 1.0, 1.0]), ("proportional", [1.0, 0.2, 0.2 + 0.8 / 2, 0.2 + 0.8 / 6])],
)
def test_one_step_by_hand(scaling, scale):
    """The product of weights and features is scaled by class, the bias is not."""
    world = lopsided()
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0)
    (only,) = rounds(FedRS(alpha=0.2, scaling=scaling), make_context(model, world, local, cohort=2), 1)
    w0, row = model.params(), only.ids.tolist().index(0)
    weight, bias = (w0[name].clone().requires_grad_() for name in ("head.weight", "head.bias"))
    x = (world.x[world.of(0)].double() / 255).flatten(1)
    F.cross_entropy(x @ weight.T * torch.tensor(scale, dtype=torch.float64) + bias, world.y[world.of(0)]).backward()
    for name, leaf in (("head.weight", weight), ("head.bias", bias)):
        expected = (leaf - 0.5 * leaf.grad).detach()
        torch.testing.assert_close(only.models[name][row], expected, rtol=0, atol=1e-12)
        assert float((expected - w0[name]).abs().max()) > 1e-3
    assert (only.bytes_up, only.bytes_down) == (2 * 260 * 8, 2 * 260 * 8)  # one model each way: no labels are told


def test_inference_is_unscaled():
    world = lopsided()
    model = make_model("linear", world)
    algorithm = FedRS(alpha=0.0)
    state, x = start(algorithm, make_context(model, world, LOCAL, cohort=1)), world.prepare(torch.arange(5))
    assert torch.equal(algorithm.predict(state, model, x), model(model.params(), x))


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"algorithm\.alpha=1.5"):
        FedRS(alpha=1.5)
    with pytest.raises(ConfigError, match=r"algorithm\.scaling"):
        FedRS(scaling="some")


def test_resumes():
    assert_resumes(FedRS(), "cnn")
