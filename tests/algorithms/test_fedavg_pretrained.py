"""Pre-training: the SGD it claims to be, stopped where it says, and FedAvg from there on."""

import logging
from dataclasses import replace

import pytest
import torch
from worlds import (
    LOCAL,
    assert_mechanisms_agree,
    assert_resumes,
    by_hand,
    gap,
    make_context,
    make_model,
    make_world,
    play,
    run_stages,
)

from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedavg_pretrained import FedAvgPretrained
from fedexp.engine import Local
from fedexp.errors import ConfigError


def pretrained(epochs, **more):
    return FedAvgPretrained(pretraining_epochs=epochs, **more)


def norm_context(count=2):
    world = make_world()
    return make_context(make_model("norm", world), world, LOCAL, rounds=count)


def pretraining_alone(algorithm, ctx):
    """The State after the last epoch of pre-training."""
    state, done = run_stages(algorithm, ctx)
    epochs = sum(name == "pretraining" for name, _ in done)
    assert epochs == state["pretraining"]["epochs"] > 0
    return run_stages(algorithm, ctx, limit=epochs)[0]


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(pretrained(2), kind)


def test_workers_equal_this_process():
    assert gap(play(pretrained(2), "norm"), play(pretrained(2), "norm", workers=2)) == 0


@pytest.mark.parametrize("target", [None, 0.01])
def test_it_resumes_in_both_stages(target):
    """And with a target that was reached, in the first epoch."""
    assert_resumes(pretrained(2, pretraining_target=target), "norm", count=2)


def test_without_pretraining_it_is_fedavg():
    plain = play(FedAvg())
    assert gap(play(pretrained(0)), plain) == 0
    assert gap(play(pretrained(1)), plain) > 1e-3


@pytest.mark.parametrize(("given", "batch"), [(None, 24), (10, 10)])
def test_it_starts_from_sgd_on_the_union(given, batch):
    """Two epochs with a batch of 3 x 8, or the given one; decay once an epoch."""
    ctx = norm_context()
    state = pretraining_alone(pretrained(2, pretraining_batch_size=given), ctx)
    sgd, _ = run_stages(Centralized(), replace(ctx, local=replace(LOCAL, epochs=1, batch_size=batch), rounds=2))
    assert gap(state, sgd) == 0


def test_the_rounds_are_fedavg_from_there_with_the_first_learning_rate_again():
    ctx = norm_context()
    algorithm = pretrained(2)
    state, done = run_stages(algorithm, ctx)
    assert [name for name, _ in done] == ["pretraining"] * 2 + ["training"] * 2
    assert state["round"] == 2
    model = make_model("norm", ctx.world)
    for name, parameter in [*model.net.named_parameters(), *model.net.named_buffers()]:
        parameter.data.copy_(pretraining_alone(algorithm, ctx)["params"][name])
    assert gap(state, run_stages(FedAvg(), replace(ctx, model=model))[0]) == 0


@pytest.mark.parametrize(("given", "decay"), [(None, 0.5), (1.0, 1.0), (0.25, 0.25)])
def test_its_learning_rate_by_hand(given, decay):
    """Two epochs of one full batch each: w1 = w0 - lr g(w0), w2 = w1 - lr decay g(w1)."""
    world = make_world([12])
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0, lr_decay=0.5)
    state = pretraining_alone(pretrained(2, pretraining_lr_decay=given), make_context(model, world, local, cohort=1))
    once = by_hand(model, model.params(), world, 0, 0.5)
    twice = by_hand(model, once, world, 0, 0.5 * decay)
    for name, expected in twice.items():
        torch.testing.assert_close(state["params"][name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("target", "epochs", "reached", "said"),
    [(0.01, 1, True, "%"), (None, 4, None, "%"), (1.0, 4, False, "%, short of algorithm.pretraining_target=1.0")],
)
def test_a_target_ends_it_and_is_reported(target, epochs, reached, said, caplog):
    """A target that the first epoch reaches, none, and one that no epoch reaches."""
    algorithm, ctx = pretrained(4, pretraining_target=target), norm_context(1)
    with caplog.at_level(logging.INFO):
        state, _ = run_stages(algorithm, ctx)
    (line,) = (each.getMessage() for each in caplog.records if each.name == "fedexp.algorithms.fedavg_pretrained")
    assert line.startswith(f"pre-trained for {epochs} epochs of 120 examples: test accuracy ")
    assert line.endswith(said)
    result = algorithm.summary(state, ctx)
    assert 0.01 <= result.pop("pretraining_accuracy") < 1
    assert result == {"pretraining_epochs": epochs, "pretraining_target_reached": reached}


def test_an_epoch_is_trained_even_if_the_first_model_is_as_good_as_the_target():
    """The target is asked after an epoch, as in the paper."""
    ctx = norm_context(1)
    assert not pretrained(4, pretraining_target=1e-9).reached({"round": 0, "params": ctx.model.params()}, ctx)


def test_no_epochs_are_reported_as_none():
    algorithm, ctx = pretrained(0, pretraining_target=0.5), norm_context(1)
    expected = {"pretraining_epochs": 0, "pretraining_accuracy": None, "pretraining_target_reached": None}
    assert algorithm.summary(run_stages(algorithm, ctx)[0], ctx) == expected


def test_nothing_of_it_is_communication():
    state, done = run_stages(pretrained(1), norm_context(1))
    model = sum(value.numel() * 8 for value in state["params"].values())
    assert [(each.bytes_up, each.bytes_down) for _, each in done] == [(0, 0), (3 * model, 3 * model)]


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
    with pytest.raises(ConfigError, match=rf"^algorithm\.{next(iter(wrong))}="):
        FedAvgPretrained(**wrong)


def test_the_model_it_starts_from_is_a_copy():
    """Rounds must not write into what pre-training left (its State may be saved meanwhile)."""
    ctx = norm_context(1)
    state = pretraining_alone(pretrained(1), ctx)
    before = {name: value.clone() for name, value in state["params"].items()}
    run_stages(pretrained(1), ctx, state)
    assert all(torch.equal(value, before[name]) for name, value in state["params"].items())
