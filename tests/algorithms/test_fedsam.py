"""FedSAM: a step by hand, statistics and dropout of its two passes, neutral settings, bytes, mechanisms, resume."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
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
)

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedsam import FedSAM
from fedexp.data import Transform
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.models import Classifier, Model
from fedexp.world import World


@dataclass(frozen=True, kw_only=True)
class Bowl(FedAvg):
    """(a^2 + 4 b^2) / 2 where a is the head's weight and b its bias."""

    def loss(self, model, params, batch, client):
        return ((params["head.weight"].square() + 4 * params["head.bias"].square()) / 2).sum()


@dataclass(frozen=True, kw_only=True)
class Slope(FedAvg):
    """2 a - 3 b."""

    def loss(self, model, params, batch, client):
        return (2 * params["head.weight"] - 3 * params["head.bias"]).sum()


class OnBowl(FedSAM, Bowl):
    """FedSAM over the bowl."""


class OnSlope(FedSAM, Slope):
    """FedSAM over the slope."""


def one_client(body=None, features=1, engine="workers", **settings):
    """One example of ones, from weights of 3 and a bias of 1."""
    x = torch.ones(1, 1, 1, features, dtype=torch.float64)
    y = torch.zeros(1, dtype=torch.int64)
    world = World(x, y, x, y, torch.arange(1), torch.tensor([1]), 1, Transform(), torch.float64)
    model = Model(Classifier(body or nn.Flatten(), nn.Linear(features, 1)).double())
    nn.init.constant_(model.net.head.weight, 3.0)
    nn.init.constant_(model.net.head.bias, 1.0)
    local = Local(**{"steps": 1, "batch_size": 1, "lr": 0.1, "momentum": 0.0, **settings})
    return make_context(model, world, local, cohort=1, engine=engine)


def after(algorithm, ctx, count=1):
    params = rounds(algorithm, ctx, count)[-1].after["params"]
    return [float(params[name]) for name in ("head.weight", "head.bias")]


@pytest.mark.parametrize("engine", ["workers", "vectorized"])
def test_a_step_by_hand(engine):
    """g (3, 4), e (.3, .4), g' (3.3, 5.6). SGD goes to (2.7, .6)."""
    ctx = one_client(engine=engine)
    assert ctx.engine.mechanism == engine
    assert after(OnBowl(radius=0.5), ctx) == pytest.approx([2.67, 0.44], abs=1e-12)
    assert after(Bowl(), ctx) == pytest.approx([2.7, 0.6], abs=1e-12)


def test_momentum_and_weight_decay_are_the_step_s_alone():
    """rho .5, decay .1: v (3.6, 5.7), w (2.64, .43). Then g (2.64, 1.72) by hand, without either of the two."""
    ctx = one_client(steps=2, momentum=0.5, weight_decay=0.1)
    w, v = torch.tensor([3.0, 1.0]).double(), torch.zeros(2).double()
    curved = torch.tensor([1.0, 4.0]).double()
    for _ in range(2):
        g = curved * w
        v = 0.5 * v + curved * (w + 0.5 * g / g.norm()) + 0.1 * w
        w = w - 0.1 * v
    assert after(OnBowl(radius=0.5), ctx) == pytest.approx(w.tolist(), abs=1e-12)


def test_on_a_slope_it_is_sgd():
    assert after(OnSlope(radius=0.5), one_client()) == after(Slope(), one_client())


def test_a_gradient_of_zero_is_no_direction():
    """The model has one class, so that cross-entropy is 0 everywhere."""
    assert after(FedSAM(radius=0.5), one_client()) == [3.0, 1.0]


def test_both_passes_drop_the_same_activations():
    """f = (m w)^2 / 2 with a mask m of zeros and twos: e = r m / ||m||, so entries that are dropped do not move,
    and the others by lr (sum m w + r ||m||) m."""

    @dataclass(frozen=True, kw_only=True)
    class Square(FedAvg):
        def loss(self, model, params, batch, client):
            return (model(params, batch.x) - params["head.bias"]).square().sum() / 2

    class OnSquare(FedSAM, Square):
        """FedSAM over the square."""

    ctx = one_client(nn.Sequential(nn.Flatten(), nn.Dropout(0.5)), 12)
    plain, sharp = (
        rounds(each, ctx, 1)[0].uploads["update"]["head.weight"].flatten() for each in (Square(), OnSquare(radius=0.5))
    )
    mask = 2 * (plain != 0).double()
    assert 2 < (mask > 0).sum() < 12
    torch.testing.assert_close(sharp, -0.1 * (3 * mask.sum() + 0.5 * mask.norm()) * mask, rtol=1e-12, atol=0)


def test_running_statistics_follow_one_pass_a_step():
    """Of a layer whose input the weights do not change: as under FedAvg, to the bit."""
    world = make_world()
    body = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten())
    model = Model(Classifier(body, nn.Linear(64, world.classes)).double())
    ctx = make_context(model, world, LOCAL)
    (sharp,), (plain,) = (rounds(each, ctx, 1) for each in (FedSAM(radius=0.5), FedAvg()))
    for name in model.buffers:
        assert sharp.after["params"][name].equal(plain.after["params"][name])
        assert not plain.after["params"][name].equal(model.params()[name])
    assert gap(sharp.after, plain.after) > 1e-3


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_without_a_radius_it_is_fedavg(kind):
    assert gap(play(FedSAM(radius=0.0), kind), play(FedAvg(), kind)) == 0
    assert gap(play(FedSAM(radius=1e-9), kind), play(FedAvg(), kind)) < 1e-6
    assert gap(play(FedSAM(), kind), play(FedAvg(), kind)) > 1e-3


def test_bytes_are_fedavg_s():
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(FedSAM(), make_context(model, world), 1)
    assert only.bytes_up == only.bytes_down == 3 * tree.size_in_bytes(model.params())


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(FedSAM(), kind)
    assert gap(*(play(FedSAM(), kind, workers=count) for count in (1, 2))) < 1e-12


def test_resumes():
    assert_resumes(FedSAM(), "norm")


def test_with_convolutions_in_tiles_and_in_bfloat16():
    """Where the gradient inside is one of the faster convolutions, or of autocast's."""
    world = make_world([6, 9], shape=(3, 32, 32), dtype=torch.float32)
    body = [nn.Conv2d(3, 32, 5), nn.ReLU(), nn.Conv2d(32, 32, 5), nn.MaxPool2d(8), nn.ReLU(), nn.Flatten()]
    model = Model(Classifier(nn.Sequential(*body), nn.Linear(288, 4)))
    local, states = Local(epochs=1, batch_size=8, lr=0.1), []
    for engine, precision in (("workers", "float32"), ("vectorized", "float32"), ("workers", "bfloat16")):
        ctx = make_context(model, world, local, cohort=2, engine=engine, precision=precision)
        states.append(rounds(FedSAM(), ctx, 1)[0].after)
    assert gap(*states[:2]) < 1e-3
    assert gap(states[0], states[2]) < 0.2


def test_a_negative_radius_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.radius=-1"):
        FedSAM(radius=-1.0)
