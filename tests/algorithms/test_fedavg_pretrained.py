"""Pre-training: the SGD it claims to be, stopped where it says, and FedAvg from there on."""

import re
from dataclasses import replace

import pytest
import torch
from worlds import LOCAL, assert_mechanisms_agree, by_hand, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedavg_pretrained import FedAvgPretrained
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure.communication import traffic
from fedexp.randomness import generator


def pretrained(epochs, **more):
    return lambda k, local: FedAvgPretrained(k, local, pretraining_epochs=epochs, **more)


def begin(algorithm, world):
    model = make_model("norm", world)
    engine = make_engine(model, world, LOCAL)
    return algorithm.prepare(algorithm.init(world, model, model.params()), world, engine), engine


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(pretrained(2), kind)


def test_without_pretraining_it_is_fedavg():
    plain = play(lambda k, local: FedAvg(k, local))
    assert gap(play(pretrained(0)), plain) == 0
    assert gap(play(pretrained(1)), plain) > 1e-3


@pytest.mark.parametrize(("given", "batch"), [(None, 24), (10, 10)])
def test_it_starts_from_sgd_on_the_union(given, batch):
    """Two epochs with a batch of 3 x 8, or the given one; decay once an epoch."""
    world = make_world()
    state, _ = begin(FedAvgPretrained(3, LOCAL, 2, pretraining_batch_size=given), world)
    local = replace(LOCAL, epochs=1, batch_size=batch)
    rule = Centralized(1, local)
    pooled = rule.adapt(world)
    model = make_model("norm", world)
    engine, sgd = make_engine(model, pooled, local), rule.init(pooled, model, model.params())
    for round in range(2):
        sgd = rule.round(sgd, pooled, engine, generator(0, "round", round))
    assert gap(state, sgd) == 0
    assert state["round"] == 0


@pytest.mark.parametrize(("given", "decay"), [(None, 0.5), (1.0, 1.0), (0.25, 0.25)])
def test_its_learning_rate_by_hand(given, decay):
    """Two epochs of one full batch each: w1 = w0 - lr g(w0), w2 = w1 - lr decay g(w1)."""
    world = make_world([12])
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0, lr_decay=0.5)
    algorithm = FedAvgPretrained(1, local, 2, pretraining_lr_decay=given)
    state = algorithm.prepare(algorithm.init(world, model, model.params()), world, make_engine(model, world, local))
    once = by_hand(model, model.params(), world, 0, 0.5)
    twice = by_hand(model, once, world, 0, 0.5 * decay)
    for name, expected in twice.items():
        torch.testing.assert_close(state["params"][name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("target", "epochs", "reached", "said"),
    [(0.01, 1, True, r"%\n$"), (None, 4, None, r"%\n$"),
     (1.0, 4, False, r"%, short of algorithm\.pretraining_target=1\.0\n$")],
)  # fmt: skip
def test_a_target_ends_it_and_is_reported(target, epochs, reached, said, capsys):
    """A target that the first epoch reaches, none, and one that no epoch reaches."""
    world = make_world()
    state, engine = begin(FedAvgPretrained(3, LOCAL, 4, pretraining_target=target), world)
    assert re.search(said, capsys.readouterr().out)
    result = FedAvgPretrained(3, LOCAL).conclude(state, engine)
    assert 0.01 <= result.pop("pretraining_accuracy") < 1
    assert result == {"pretraining_epochs": epochs, "pretraining_target_reached": reached}


def test_nothing_of_it_is_communication():
    world = make_world()
    algorithm = FedAvgPretrained(3, LOCAL, 1)
    state, engine = begin(algorithm, world)
    assert engine.drain() == []
    algorithm.round(state, world, engine, generator(0, "round", 0))
    model = sum(value.numel() * 8 for value in state["params"].values())
    assert traffic(engine.drain()) == (3 * model, 3 * model)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pretraining_epochs": -1},
        {"pretraining_target": 60.0},
        {"pretraining_batch_size": 0},
        {"pretraining_lr_decay": 0.0},
        {"pretraining_lr_decay": 1.5},
    ],
    ids=str,
)
def test_settings(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FedAvgPretrained(3, LOCAL, **wrong)


def test_the_model_it_starts_from_is_a_copy():
    """Rounds must not write into what pre-training left (its State may be saved meanwhile)."""
    world = make_world()
    algorithm = FedAvgPretrained(3, LOCAL, 1)
    state, engine = begin(algorithm, world)
    before = {name: value.clone() for name, value in state["params"].items()}
    algorithm.round(state, world, engine, generator(0, "round", 0))
    assert all(torch.equal(value, before[name]) for name, value in state["params"].items())
