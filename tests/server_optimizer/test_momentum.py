"""FedAvgM: heavy ball and Nesterov by hand, the neutral setting, running statistics, mechanisms, resume."""

import pytest
import torch
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

from fedexp.algorithms.fedavg import FedAvg
from fedexp.errors import ConfigError
from fedexp.server_optimizer.momentum import Momentum


def path(optimizer, count):
    """w after each round where two clients of equal size have the losses w^2 / 2 and (w - 4)^2 / 2, from w = 1.

    One step each with learning rate 0.1: their mean update is (2 - w) / 10.
    """
    w = {"w": torch.ones(1, dtype=torch.float64)}
    memory, found = optimizer.init(w), []
    for _ in range(count):
        w, memory = optimizer.step(w, {"w": (2 - w["w"]) / 10}, memory, 0.1)
        found.append(float(w["w"]))
    return found


def test_heavy_ball_by_hand():
    """D .1, .09, .072; v .1, .18, .234."""
    assert path(Momentum(beta=0.9), 3) == pytest.approx([1.1, 1.28, 1.514], abs=1e-12)


def test_nesterov_by_hand():
    assert path(Momentum(beta=0.9, nesterov=True), 3) == pytest.approx([1.19, 1.4249, 1.672679], abs=1e-12)


def test_the_learning_rate_scales_the_step_and_not_the_memory():
    """v .1, w 1.05; D .095, v .185, w 1.1425."""
    assert path(Momentum(lr=0.5, beta=0.9), 2) == pytest.approx([1.05, 1.1425], abs=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_momentum_it_is_fedavg(nesterov):
    assert gap(play(FedAvg(server_optimizer=Momentum(beta=0, nesterov=nesterov)), "norm"), play(FedAvg(), "norm")) == 0


def test_running_statistics_take_the_plain_mean_and_have_no_momentum():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL)
    for done in rounds(FedAvg(server_optimizer=Momentum(lr=0.5)), ctx, 3):
        assert set(done.after["optimizer"]["v"]) == set(ctx.weights)
        share = ctx.sizes[done.ids].double() / ctx.sizes[done.ids].sum()
        for name in ctx.model.buffers:
            expected = torch.einsum("k,k...->...", share, done.models[name])
            torch.testing.assert_close(done.after["params"][name], expected, rtol=0, atol=1e-14)


def test_mechanisms_agree():
    assert_mechanisms_agree(FedAvg(server_optimizer=Momentum()), "norm")


def test_resumes():
    assert_resumes(FedAvg(server_optimizer=Momentum(nesterov=True)), "norm")


def test_settings_are_checked():
    for change in ({"beta": 1.0}, {"beta": -0.1}, {"lr": 0}):
        with pytest.raises(ConfigError, match=rf"server_optimizer\.{next(iter(change))}="):
            Momentum(**change)
