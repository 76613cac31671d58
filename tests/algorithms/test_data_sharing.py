"""Data sharing: who receives what, what it does to the skew, what it costs, and what training sees."""

from dataclasses import replace

import pytest
import torch
from worlds import LOCAL, assert_mechanisms_agree, by_hand, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.data_sharing import DataSharing
from fedexp.algorithms.fedavg import FedAvg
from fedexp.data import Transform
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure.communication import traffic
from fedexp.measure.skew import emd, mean_emd
from fedexp.randomness import generator
from fedexp.world import World


def sharing(**settings):
    settings = {"pretraining_epochs": 0, "holdout": 0.2, "beta": 0.2, "alpha": 0.5, **settings}
    return lambda k, local: DataSharing(k, local, **settings)


def one_class_world(classes=10, each=500):
    """As many clients as classes, client c holding all of class c."""
    y = torch.arange(classes).repeat_interleave(each)
    x = torch.zeros(len(y), 1, 2, 2, dtype=torch.uint8)
    sizes = torch.full((classes,), each)
    return World(x, y, x[:1], y[:1], torch.arange(len(y)), sizes, classes, Transform())


@pytest.mark.parametrize(
    ("beta", "alpha", "expected"),
    [(0.1, 1.0, 0.9), (0.1, 0.5, 1.2), (0.025, 1.0, 1.44), (0.25, 1.0, 0.9 * 8 / 14), (0.1, 0.0, 1.8)],
)
def test_emd_after_sharing(beta, alpha, expected):
    """A tenth of CIFAR-10's protocol: 10 x 400 one-class examples; 1.8 * 400 / (400 + alpha |G|)."""
    world = sharing(beta=beta, alpha=alpha)(10, LOCAL).adapt(one_class_world())
    received = round(alpha * beta * 4000)
    assert world.sizes.tolist() == [400 + received] * 10
    assert 1.8 * 400 / (400 + received) == pytest.approx(expected)
    if alpha in (0, 1):  # otherwise a random part of G is nearly, not exactly, uniform
        assert emd(world.label_counts).tolist() == pytest.approx([expected] * 10)
    assert mean_emd(world.label_counts) == pytest.approx(expected, abs=0.05)


def test_held_out_shared_and_own_examples():
    """H and the clients' own data are apart; G is uniform; each client has its own half of G, each part once."""
    before = one_class_world()
    algorithm = sharing(beta=0.1, alpha=0.5)(10, LOCAL)
    world = algorithm.adapt(before)
    shared = set(algorithm.shared.tolist())
    assert len(shared) == 400
    assert torch.bincount(before.y[algorithm.shared]).tolist() == [40] * 10
    portions = []
    for client in range(10):
        rows = world.of(client).tolist()
        own, portion = rows[:400], rows[400:]
        assert set(before.y[own].tolist()) == {client}
        assert not shared & set(own)
        assert len(set(portion)) == 200
        assert set(portion) <= shared
        portions.append(frozenset(portion))
    assert len(set(portions)) == 10
    assert torch.equal(world.rows, sharing(beta=0.1, alpha=0.5)(10, LOCAL).adapt(before).rows)
    assert not torch.equal(world.rows, sharing(beta=0.1, alpha=0.5, seed=1)(10, LOCAL).adapt(before).rows)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(sharing(pretraining_epochs=1), kind)


def test_it_is_fedavg_on_the_enlarged_clients():
    """With alpha 0 and no warm-up: FedAvg on what the hold-out leaves. With shared data: other weights."""

    class Adapted(FedAvg):
        def adapt(self, world):
            return sharing(alpha=0.0)(3, LOCAL).adapt(world)

    plain = play(lambda k, local: Adapted(k, local))
    assert gap(play(sharing(alpha=0.0)), plain) == 0
    assert gap(play(sharing(alpha=1.0)), plain) > 1e-3


def test_shared_examples_and_the_warm_up_model_are_sent_once():
    """6 clients: 1 model each down besides, and alpha |G| examples of 64 uint8 pixels and an int64 label."""
    algorithm = sharing(pretraining_epochs=1)(3, LOCAL)
    world = algorithm.adapt(make_world())
    model = make_model("cnn", world)
    engine = make_engine(model, world, LOCAL)
    state = algorithm.prepare(algorithm.init(world, model, model.params()), world, engine)
    size = sum(value.numel() * 8 for value in model.params().values())
    held = 4 * round(0.2 * 120 / 4)
    part = round(0.5 * 4 * round(0.2 * (120 - held) / 4))
    state = algorithm.round(state, world, engine, generator(0, "round", 0))
    assert traffic(engine.drain()) == (3 * size, 3 * size + 6 * (size + part * (64 + 8)))
    algorithm.round(state, world, engine, generator(0, "round", 1))
    assert traffic(engine.drain()) == (3 * size, 3 * size)


def test_the_warm_up_model_is_sgd_on_the_shared_examples_alone():
    """Two epochs of 20 examples with a batch of 8."""
    algorithm = sharing(pretraining_epochs=2, pretraining_batch_size=8)(3, LOCAL)
    world = algorithm.adapt(make_world())
    model = make_model("cnn", world)
    engine = make_engine(model, world, LOCAL)
    state = algorithm.prepare(algorithm.init(world, model, model.params()), world, engine)
    shared = replace(world, rows=algorithm.shared, sizes=torch.tensor([len(algorithm.shared)]))
    rule = Centralized(1, replace(LOCAL, epochs=1))
    server, sgd = make_engine(model, shared, rule.local), rule.init(shared, model, model.params())
    for round in range(2):
        sgd = rule.round(sgd, shared, server, generator(0, "round", round))
    assert gap(state, sgd) == 0
    assert len(algorithm.shared) == 20


@pytest.mark.parametrize(("given", "decay"), [(1.0, 1.0), (None, 0.5)])
def test_the_warm_up_s_learning_rate_by_hand(given, decay):
    """Two epochs of one batch each, of all of G: w1 = w0 - lr g(w0), w2 = w1 - lr decay g(w1)."""
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0, lr_decay=0.5)
    algorithm = sharing(pretraining_epochs=2, pretraining_batch_size=100, pretraining_lr_decay=given)(3, local)
    world = algorithm.adapt(make_world())
    model = make_model("linear", world)
    engine = make_engine(model, world, local)
    state = algorithm.prepare(algorithm.init(world, model, model.params()), world, engine)
    shared = replace(world, rows=algorithm.shared, sizes=torch.tensor([20]))
    once = by_hand(model, model.params(), shared, 0, 0.5)
    twice = by_hand(model, once, shared, 0, 0.5 * decay)
    for name, expected in twice.items():
        torch.testing.assert_close(state["params"][name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"beta": 0.3}, "algorithm.beta"),  # 4,000 examples and 1,000 held out: at most 0.25
        ({"beta": 1e-5}, "algorithm.beta"),
        ({"holdout": 1.0}, "algorithm.holdout"),
        ({"holdout": 0.9999}, "algorithm.holdout"),
        ({"alpha": 1.1}, "algorithm.alpha"),
    ],
    ids=str,
)
def test_settings(wrong, key):
    with pytest.raises(ConfigError) as error:
        sharing(**wrong)(10, LOCAL).adapt(one_class_world())
    assert error.value.key == key
