"""FedDyn: a problem with a known optimum, one round by hand, bytes, mechanisms, resume."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from worlds import assert_mechanisms_agree, assert_resumes, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.feddyn import FedDyn
from fedexp.data import Transform
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure.communication import traffic
from fedexp.models import Classifier, Model
from fedexp.randomness import generator
from fedexp.world import World

# Client k minimises c_k / 2 (w - t_k)^2. The sum's optimum is sum(c t) / sum(c), not the mean of the t.
CURVATURES, TARGETS = (4.0, 0.5, 1.0, 2.5), (1.0, -3.0, 5.0, 0.5)
OPTIMUM = sum(c * t for c, t in zip(CURVATURES, TARGETS)) / sum(CURVATURES)


@dataclass
class Quadratic(FedAvg):
    """Its one example tells a client its curvature and its target; w is the head's bias."""

    def loss(self, model, params, batch, sent):
        curvature, target = batch.x.flatten(1).unbind(1)
        return batch.mean(curvature / 2 * (params["head.bias"] - target) ** 2)


@dataclass
class QuadraticDyn(FedDyn, Quadratic):
    """FedDyn over the same losses."""


def quadratic_world(clients):
    x = torch.tensor(list(zip(CURVATURES, TARGETS)), dtype=torch.float64)[:clients].view(clients, 1, 1, 2)
    y = torch.zeros(clients, dtype=torch.int64)
    sizes = torch.ones(clients, dtype=torch.int64)
    return World(x, y, x, y, torch.arange(clients), sizes, 1, Transform(), torch.float64)


def solve(make, clients, rounds, local):
    world = quadratic_world(clients)
    model = Model(Classifier(nn.Flatten(), nn.Linear(2, 1)).double())
    algorithm = make(local)
    engine = make_engine(model, world, local)
    state = algorithm.init(world, model, model.params())
    for round in range(rounds):
        state = algorithm.round(state, world, engine, generator(0, "round", round))
    return float(state["params"]["head.bias"])


MANY_STEPS = Local(steps=40, batch_size=1, lr=0.2, momentum=0.0)
FEW_STEPS = Local(steps=12, batch_size=1, lr=0.2, momentum=0.0)  # enough for the local optimum at alpha = 2


def test_two_clients_reach_the_optimum_that_fedavg_with_many_local_steps_misses():
    optimum = (4.0 * 1.0 + 0.5 * -3.0) / 4.5
    dyn = solve(lambda local: QuadraticDyn(2, local, alpha=0.5), 2, 30, MANY_STEPS)
    avg = solve(lambda local: Quadratic(2, local), 2, 30, MANY_STEPS)
    assert dyn == pytest.approx(optimum, abs=1e-3)
    assert avg == pytest.approx((1.0 - 3.0) / 2, abs=0.05), "FedAvg ends at the mean of the local optima"


def test_partial_participation_reaches_the_optimum_and_the_published_server_state_does_not():
    dyn = solve(lambda local: QuadraticDyn(2, local, alpha=2.0), 4, 120, FEW_STEPS)
    published = solve(lambda local: QuadraticDyn(2, local, alpha=2.0, server_state="published"), 4, 120, FEW_STEPS)
    assert dyn == pytest.approx(OPTIMUM, abs=1e-3)
    assert not abs(published - OPTIMUM) < 0.1


def test_a_round_by_hand():
    """Two clients, one step of 0.1 from w = w0 with alpha 0.5, twice."""
    local = Local(steps=1, batch_size=1, lr=0.1, momentum=0.0)
    world = quadratic_world(2)
    model = Model(Classifier(nn.Flatten(), nn.Linear(2, 1)).double())
    algorithm = QuadraticDyn(2, local, alpha=0.5)
    params = {**model.params(), "head.bias": torch.tensor([2.0], dtype=torch.float64)}
    engine = make_engine(model, world, local)
    state = algorithm.round(algorithm.init(world, model, params), world, engine, generator(0, "round", 0))
    # gradients at 2: 4 (2 - 1) = 4 and 0.5 (2 + 3) = 2.5; w_k = 1.6 and 1.75; they moved by -0.4 and -0.25
    # g_k = 0.2, 0.125; h = -0.5 / 2 * -0.65 = 0.1625; w = 1.675 - 0.325 = 1.35
    assert state["client_gradients"]["head.bias"].flatten().tolist() == pytest.approx([0.2, 0.125])
    assert float(state["h"]["head.bias"]) == pytest.approx(0.1625)
    assert float(state["params"]["head.bias"]) == pytest.approx(1.35)
    state = algorithm.round(state, world, engine, generator(0, "round", 1))
    # gradients at 1.35 with -g_k: 1.4 - 0.2 = 1.2 and 2.175 - 0.125 = 2.05; moved -0.12, -0.205
    # h = 0.1625 + 0.25 * 0.325 = 0.24375; w = 1.35 - 0.1625 - 0.4875 = 0.7
    assert state["client_gradients"]["head.bias"].flatten().tolist() == pytest.approx([0.26, 0.2275])
    assert float(state["params"]["head.bias"]) == pytest.approx(0.7)


def test_the_first_round_with_a_vanishing_regulariser_is_fedavg_stepping_further():
    """h / alpha does not vanish with alpha: w = mean - h / alpha goes 1 + K / N times FedAvg's way."""
    local = Local(epochs=1, batch_size=8, lr=0.05, momentum=0.9)
    ends = []
    for make in (lambda: FedDyn(2, local, alpha=1e-12), lambda: FedAvg(2, local)):
        world = make_world([16, 16, 16, 16])
        model = make_model("norm", world)
        start = model.params()
        state = make().init(world, model, start)
        ends.append(make().round(state, world, make_engine(model, world, local), generator(0, "round", 0))["params"])
    for name, value in ends[1].items():
        factor = 1.5 if name in model.weights else 1.0
        torch.testing.assert_close(ends[0][name] - start[name], factor * (value - start[name]), rtol=1e-8, atol=1e-12)


def test_sends_one_model_each_way():
    world = make_world(dtype=torch.float32)
    model = make_model("norm", world, torch.float32)
    local = Local(epochs=1, batch_size=8)
    algorithm, engine = FedDyn(3, local), make_engine(model, world, local)
    algorithm.round(algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0))
    size = 4 * sum(value.numel() for value in model.params().values())
    assert traffic(engine.drain()) == (3 * size, 3 * size)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(lambda k, local: FedDyn(k, local, alpha=0.5), kind)


def test_differs_from_fedavg():
    dyn, avg = play(lambda k, local: FedDyn(k, local)), play(lambda k, local: FedAvg(k, local))
    assert gap(dyn, avg) > 1e-3


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"algorithm.alpha=0"):
        FedDyn(2, Local(), alpha=0)
    with pytest.raises(ConfigError, match=r"algorithm.server_state=other"):
        FedDyn(2, Local(), server_state="other")


def test_resumes():
    assert_resumes(lambda k, local: FedDyn(k, local), "norm")
