"""FedLC: its neutral setting, one step by hand."""

import pytest
import torch
import torch.nn.functional as F
from worlds import assert_mechanisms_agree, assert_resumes, gap, make_context, make_model, make_world, play, rounds

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedlc import FedLC
from fedexp.engine import Local
from fedexp.errors import ConfigError


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("workers", [1, 2])
def test_mechanisms_agree(kind, workers):
    assert_mechanisms_agree(FedLC(tau=0.7), kind, workers=workers)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_tau_0_is_fedavg(kind):
    assert gap(play(FedLC(tau=0.0), kind), play(FedAvg(), kind)) < 1e-12


def test_one_step_by_hand():
    """16, 1, 0 and 81 examples of the classes: margins tau/2, tau, 100 tau and tau/3."""
    world = make_world([98])
    world.y[world.of(0)] = torch.tensor([0] * 16 + [1] + [3] * 81)
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0)
    (only,) = rounds(FedLC(tau=0.6), make_context(model, world, local, cohort=1), 1)
    w0, trained = model.params(), only.after["params"]
    weight, bias = (w0[name].clone().requires_grad_() for name in ("head.weight", "head.bias"))
    x = (world.x[world.of(0)].double() / 255).flatten(1)
    margins = torch.tensor([0.3, 0.6, 60.0, 0.2], dtype=torch.float64)
    F.cross_entropy(x @ weight.T + bias - margins, world.y[world.of(0)]).backward()
    for name, leaf in (("head.weight", weight), ("head.bias", bias)):
        torch.testing.assert_close(trained[name], (leaf - 0.5 * leaf.grad).detach(), rtol=0, atol=1e-9)
    assert float((trained["head.bias"] - w0["head.bias"])[2].abs()) < 1e-9  # an absent class rests
    assert (only.bytes_up, only.bytes_down) == (260 * 8, 260 * 8)  # one model each way: nobody is told the labels


def test_negative_tau_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.tau"):
        FedLC(tau=-1.0)


def test_resumes():
    assert_resumes(FedLC(), "cnn")
