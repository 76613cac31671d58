"""FedLC: its neutral setting, one step by hand."""

import pytest
import torch
import torch.nn.functional as F
from worlds import LOCAL, assert_mechanisms_agree, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedlc import FedLC
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure.communication import traffic


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_stack_equals_one_by_one(kind):
    assert_mechanisms_agree(lambda k, local: FedLC(k, local, tau=0.7), kind)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_tau_0_is_fedavg(kind):
    fedlc = play(lambda k, local: FedLC(k, local, tau=0.0), kind)
    assert gap(fedlc, play(lambda k, local: FedAvg(k, local), kind)) < 1e-12


def test_one_step_by_hand():
    """16, 1, 0 and 81 examples of the classes: margins tau/2, tau, 100 tau and tau/3."""
    world = make_world([98])
    world.y[world.of(0)] = torch.tensor([0] * 16 + [1] + [3] * 81)
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0)
    start, engine = model.params(), make_engine(model, world, local)
    algorithm = FedLC(1, local, tau=0.6)
    state, ids = algorithm.init(world, model, start), torch.tensor([0])
    trained = engine.train(algorithm, state, ids, algorithm.send(state, ids))
    weight, bias = (start[name].clone().requires_grad_() for name in ("head.weight", "head.bias"))
    x = (world.x[world.of(0)].double() / 255).flatten(1)
    margins = torch.tensor([0.3, 0.6, 60.0, 0.2], dtype=torch.float64)
    F.cross_entropy(x @ weight.T + bias - margins, world.y[world.of(0)]).backward()
    for name, leaf in (("head.weight", weight), ("head.bias", bias)):
        torch.testing.assert_close(trained.params[name][0], (leaf - 0.5 * leaf.grad).detach(), rtol=0, atol=1e-9)
    assert float((trained.params["head.bias"][0] - start["head.bias"])[2].abs()) < 1e-9  # an absent class rests
    assert traffic(engine.drain()) == (260 * 8, 260 * 8)


def test_negative_tau_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.tau"):
        FedLC(1, LOCAL, tau=-1.0)
