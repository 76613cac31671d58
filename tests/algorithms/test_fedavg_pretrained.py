"""Pre-training: the SGD it claims to be, stopped where it says, and FedAvg from there on."""

from dataclasses import replace

import pytest
import torch
from worlds import LOCAL, assert_mechanisms_agree, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedavg_pretrained import FedAvgPretrained
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


def test_a_target_ends_it_and_is_reported():
    """A target that the first epoch reaches, and one that none does."""
    world = make_world()
    state, engine = begin(FedAvgPretrained(3, LOCAL, 4, pretraining_target=0.01), world)
    result = FedAvgPretrained(3, LOCAL).conclude(state, engine)
    assert result["pretraining_epochs"] == 1
    assert 0.01 <= result["pretraining_accuracy"] <= 1
    assert begin(FedAvgPretrained(3, LOCAL, 4, pretraining_target=1.0), world)[0]["pretraining"]["epochs"] == 4


def test_nothing_of_it_is_communication():
    world = make_world()
    algorithm = FedAvgPretrained(3, LOCAL, 1)
    state, engine = begin(algorithm, world)
    assert engine.drain() == []
    algorithm.round(state, world, engine, generator(0, "round", 0))
    model = sum(value.numel() * 8 for value in state["params"].values())
    assert traffic(engine.drain()) == (3 * model, 3 * model)


@pytest.mark.parametrize(
    "wrong", [{"pretraining_epochs": -1}, {"pretraining_target": 60.0}, {"pretraining_batch_size": 0}], ids=str
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
