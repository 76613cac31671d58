"""FedFA: its weights and a round by hand, the neutral setting, bytes, mechanisms, resume."""

import math
from dataclasses import replace

import pytest
import torch
from worlds import assert_mechanisms_agree, assert_resumes, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedfa import FedFA
from fedexp.engine import Local, Sent, Trained
from fedexp.errors import ConfigError
from fedexp.measure.communication import traffic
from fedexp.randomness import generator

LOCAL = Local(epochs=1, batch_size=8, lr=0.1)


def test_weights_by_hand():
    """acc .2, .8, 1: shares .1, .4, .5; f 1, 1, 2: shares .25, .25, .5."""
    accuracy, participations = torch.tensor([0.2, 0.8, 1.0]), torch.tensor([1.0, 1.0, 2.0])
    a = [-math.log2(share + 1e-6) for share in (0.1, 0.4, 0.5)]
    b = [-math.log2(share + 1e-5) for share in (0.75, 0.75, 0.5)]
    only_a = FedFA(3, LOCAL).weights(accuracy, participations)
    assert only_a.tolist() == pytest.approx([3.32191 / 5.64384, 1.32192 / 5.64384, 1.0 / 5.64384], abs=1e-4)
    assert only_a[0] > only_a[1] > only_a[2], "the less accurate weighs more"
    mixed = FedFA(3, LOCAL, alpha=0.3).weights(accuracy, participations)
    expected = [0.3 * x / sum(a) + 0.7 * y / sum(b) for x, y in zip(a, b)]
    assert mixed.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("accuracy", [[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.5, 0.5, 0.5]])
def test_weights_sum_to_one_and_are_finite_at_the_clamps(alpha, accuracy):
    weights = FedFA(3, LOCAL, alpha=alpha).weights(torch.tensor(accuracy), torch.tensor([1.0, 7.0, 30.0]))
    assert float(weights.sum()) == pytest.approx(1)
    assert (weights >= 0).all()


def test_no_accuracy_counts_as_a_thousandth():
    algorithm, once = FedFA(2, LOCAL), torch.ones(2)
    nothing = algorithm.weights(torch.tensor([0.0, 0.5]), once)
    torch.testing.assert_close(nothing, algorithm.weights(torch.tensor([0.001, 0.5]), once))


def test_one_client_alone_gets_all_the_weight():
    assert FedFA(1, LOCAL, alpha=0.5).weights(torch.tensor([0.7]), torch.tensor([3.0])).tolist() == pytest.approx([1])


@pytest.mark.parametrize("sign", [-1, 1])
def test_server_momentum_by_hand(sign):
    """Two clients of equal weight at 1 and 3 from 0, with gamma 0.5 and eta 0.1, twice."""
    algorithm = FedFA(2, LOCAL, gamma=0.5, sign=sign)
    reply = {"accuracy": torch.tensor([0.5, 0.5]), "participations": torch.ones(2)}
    state = {"round": 0, "params": {"w": torch.zeros(1), "statistics": torch.zeros(1)}}
    state |= {"momentum": {"w": torch.zeros(1)}, "participations": torch.zeros(2, dtype=torch.int64)}
    ids, ones = torch.tensor([0, 1]), torch.ones(2)
    back = {"w": torch.tensor([[1.0], [3.0]]), "statistics": torch.tensor([[1.0], [3.0]])}
    first = algorithm.merge(state, ids, Sent({}), Trained(back, ones, ones, ones, reply))
    assert float(first["params"]["w"]) == pytest.approx(2 + sign * 0.1 * 1.0)  # m = 0.5 (2 - 0)
    assert float(first["params"]["statistics"]) == pytest.approx(2)
    assert first["participations"].tolist() == [1, 1]
    second = algorithm.merge(first, ids, Sent({}), Trained(back, ones, ones, ones, reply))
    m = 0.5 * 1.0 + 0.5 * (2 - (2 + sign * 0.1))
    assert float(second["params"]["w"]) == pytest.approx(2 + sign * 0.1 * m)
    decaying = FedFA(2, replace(LOCAL, lr_decay=0.5), gamma=0.5, sign=sign)  # the server's rate is the round's
    later = decaying.merge({**first, "round": 1}, ids, Sent({}), Trained(back, ones, ones, ones, reply))
    assert float(later["params"]["w"]) == pytest.approx(2 + sign * 0.05 * m)


def test_equal_frequencies_equal_sizes_and_no_momentum_are_fedavg():
    sizes = [16, 16, 16, 16]
    ends = []
    for make in (lambda: FedFA(4, LOCAL, alpha=0, sign=0), lambda: FedAvg(4, LOCAL)):
        world = make_world(sizes)
        model = make_model("norm", world)
        state = make().init(world, model, model.params())
        engine = make_engine(model, world, LOCAL)
        for round in range(3):
            state = make().round(state, world, engine, generator(0, "round", round))
        ends.append(state)
    assert gap(*ends) < 1e-13


def test_accuracies_are_those_of_the_received_model():
    world = make_world()
    model = make_model("cnn", world)
    engine, algorithm = make_engine(model, world, LOCAL), FedFA(6, LOCAL)
    start = model.params()
    algorithm.round(algorithm.init(world, model, start), world, engine, generator(0, "round", 0))
    exchange = engine.drain()[0]
    for client, accuracy in zip(exchange.ids.tolist(), exchange.trained.reply["accuracy"]):
        rows = world.of(client)
        hits = (model(start, world.prepare(rows), training=False).argmax(1) == world.y[rows]).double().mean()
        assert float(accuracy) == pytest.approx(float(hits))
    assert exchange.trained.reply["participations"].tolist() == [1] * 6


def test_sends_two_scalars_more_than_fedavg():
    world = make_world(dtype=torch.float32)
    model = make_model("cnn", world, torch.float32)
    algorithm, engine = FedFA(3, LOCAL), make_engine(model, world, LOCAL)
    algorithm.round(algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0))
    size = 4 * sum(value.numel() for value in model.params().values())
    assert traffic(engine.drain()) == (3 * (size + 2 * 4), 3 * size)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(lambda k, local: FedFA(k, local, alpha=0.5, gamma=0.5), kind)


def test_resumes():
    assert_resumes(lambda k, local: FedFA(k, local, alpha=0.5, gamma=0.5), "norm")


def test_differs_from_fedavg():
    assert gap(play(lambda k, local: FedFA(k, local)), play(lambda k, local: FedAvg(k, local))) > 1e-3


def test_settings_are_checked():
    for change in ({"alpha": 1.5}, {"gamma": 1.0}, {"sign": 2}):
        with pytest.raises(ConfigError, match=f"algorithm.{next(iter(change))}"):
            FedFA(2, LOCAL, **change)
