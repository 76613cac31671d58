"""MOON: its neutral setting, its contrast by hand, what clients remember, its bytes."""

import math

import pytest
import torch
from torch import nn
from worlds import LOCAL, assert_mechanisms_agree, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.moon import Moon
from fedexp.engine import Batch
from fedexp.engine.client import OneClient
from fedexp.errors import ConfigError
from fedexp.measure.communication import traffic
from fedexp.models import Classifier, Model
from fedexp.randomness import generator


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_stack_equals_one_by_one(kind):
    assert_mechanisms_agree(lambda k, local: Moon(k, local, mu=2.0), kind)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mu_0_is_fedavg(kind):
    moon = play(lambda k, local: Moon(k, local, mu=0.0), kind)
    assert gap(moon, play(lambda k, local: FedAvg(k, local), kind)) < 1e-12


def test_first_participation_has_no_contrast_and_the_second_has():
    """With all clients in every round, round 1 is FedAvg's and round 2 is not."""
    everyone = lambda mu: lambda _, local: Moon(6, local, mu=mu)  # noqa: E731
    plain = lambda _, local: FedAvg(6, local)  # noqa: E731
    assert gap(play(everyone(5.0), count=1), play(plain, count=1)) < 1e-12
    assert gap(play(everyone(5.0), count=2), play(plain, count=2)) > 1e-3


def test_loss_by_hand():
    """Features (1, 0) and (3, 4) against the global model's (1, 0), (0, 1) and the last one's (0, 1), (0, 1)."""
    double = {"dtype": torch.float64}
    model = Model(Classifier(nn.Linear(2, 2, bias=False), nn.Linear(2, 2)).to(**double))

    def params(features):  # with the unit vectors as examples, the encoder's columns are their features
        head = {"head.weight": torch.eye(2, **double), "head.bias": torch.zeros(2, **double)}
        return {"encoder.weight": torch.tensor(features, **double).T, **head}

    now, everyones = params([[1.0, 0.0], [3.0, 4.0]]), params([[1.0, 0.0], [0.0, 1.0]])
    memory = {"previous": params([[0.0, 1.0], [0.0, 1.0]]), "took_part": torch.ones((), **double)}
    batch = Batch(torch.eye(2, **double), torch.tensor([0, 1]), torch.ones(2, **double), torch.tensor(0))
    loss = Moon(1, LOCAL, mu=3.0, temperature=0.5).loss(model, now, batch, OneClient(everyones, {}, memory))
    entropy = math.log(1 + math.exp(-1))  # logits (1, 0) for class 0, (3, 4) for class 1
    first = -math.log(math.exp(1 / 0.5) / (math.exp(1 / 0.5) + math.exp(0)))
    second = -math.log(math.exp(0.8 / 0.5) / (math.exp(0.8 / 0.5) + math.exp(0.8 / 0.5)))
    assert float(loss) == pytest.approx(entropy + 3.0 * (first + second) / 2, abs=1e-12)


def test_clients_keep_their_own_last_model_and_nobody_elses():
    world = make_world()
    model = make_model("cnn", world)
    engine, algorithm = make_engine(model, world, LOCAL), Moon(2, LOCAL)
    state = algorithm.init(world, model, model.params())
    before = state["previous"]["head.weight"].clone()
    gen = generator(0, "round", 0)
    ids = algorithm.select(state, world, gen)
    state = algorithm.round(state, world, engine, generator(0, "round", 0))
    exchange = engine.drain()[0]
    torch.testing.assert_close(state["previous"]["head.weight"][ids], exchange.trained.params["head.weight"])
    rest = [client for client in range(6) if client not in ids.tolist()]
    assert torch.equal(state["previous"]["head.weight"][rest], before[rest])
    assert state["took_part"].nonzero().squeeze(1).tolist() == sorted(ids.tolist())


def test_bytes_are_fedavgs():
    world = make_world()
    model = make_model("norm", world)
    engine, algorithm = make_engine(model, world, LOCAL), Moon(3, LOCAL)
    algorithm.round(algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0))
    entries = 4 * 9 + 4 + 4 * 4 + 36 * 4 + 4
    assert traffic(engine.drain()) == (3 * entries * 8, 3 * entries * 8)


def test_temperature_0_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.temperature"):
        Moon(1, LOCAL, temperature=0.0)
