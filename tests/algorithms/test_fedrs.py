"""FedRS: its neutral setting, one step by hand, its two scalings."""

import pytest
import torch
import torch.nn.functional as F
from worlds import LOCAL, assert_mechanisms_agree, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedrs import FedRS
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure.communication import traffic


def lopsided():
    """Client 0 holds classes 0 (6 times) and 2 (3 times) of four; client 1 all."""
    world = make_world([9, 8])
    world.y[world.of(0)] = torch.tensor([0, 0, 0, 0, 0, 0, 2, 2, 2])
    world.y[world.of(1)] = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    return world


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("scaling", ["missing", "proportional"])
def test_stack_equals_one_by_one(kind, scaling):
    assert_mechanisms_agree(lambda k, local: FedRS(k, local, alpha=0.3, scaling=scaling), kind)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_alpha_1_is_fedavg(kind):
    fedrs = play(lambda k, local: FedRS(k, local, alpha=1.0), kind)
    assert gap(fedrs, play(lambda k, local: FedAvg(k, local), kind)) < 1e-12


@pytest.mark.parametrize(
    ("scaling", "scale"), [("missing", [1.0, 0.2, 1.0, 0.2]), ("proportional", [1.0, 0.2, 0.2 + 0.8 * 0.5, 0.2])]
)
def test_one_step_by_hand(scaling, scale):
    """The product of weights and features is scaled by class, the bias is not."""
    world = lopsided()
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0)
    start, engine = model.params(), make_engine(model, world, local)
    algorithm = FedRS(1, local, alpha=0.2, scaling=scaling)
    state = algorithm.init(world, model, start)
    ids = torch.tensor([0])
    trained = engine.train(algorithm, state, ids, algorithm.send(state, ids))
    weight, bias = (start[name].clone().requires_grad_() for name in ("head.weight", "head.bias"))
    x = (world.x[world.of(0)].double() / 255).flatten(1)
    F.cross_entropy(x @ weight.T * torch.tensor(scale, dtype=torch.float64) + bias, world.y[world.of(0)]).backward()
    for name, leaf in (("head.weight", weight), ("head.bias", bias)):
        expected = (leaf - 0.5 * leaf.grad).detach()
        torch.testing.assert_close(trained.params[name][0], expected, rtol=0, atol=1e-12)
        assert float((expected - start[name]).abs().max()) > 1e-3
    assert traffic(engine.drain()) == (260 * 8, 260 * 8)  # one model each way: nobody is told the labels


def test_inference_is_unscaled():
    world = lopsided()
    model = make_model("linear", world)
    algorithm = FedRS(1, LOCAL, alpha=0.0)
    state, x = algorithm.init(world, model, model.params()), world.prepare(torch.arange(5))
    assert torch.equal(algorithm.predict(state, model, x), model(model.params(), x))


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"algorithm\.alpha=1.5"):
        FedRS(1, LOCAL, alpha=1.5)
    with pytest.raises(ConfigError, match=r"algorithm\.scaling"):
        FedRS(1, LOCAL, scaling="some")
