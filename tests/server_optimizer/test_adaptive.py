"""FedAdagrad, FedAdam, FedYogi: two rounds by hand, the neutral setting, running statistics, mechanisms, resume."""

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
from fedexp.server_optimizer.adaptive import Adagrad, Adam, Yogi

ALL = [Adagrad, Adam, Yogi]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (Adagrad(v_init=0.0), [1.09900990, 1.16545338]),
        (Adagrad(), [1.09900500, 1.16544686]),
        (Adam(v_init=0.0), [1.09090909, 1.21586736]),
        (Adam(), [1.09050283, 1.21515299]),
        (Yogi(v_init=0.0), [1.09090909, 1.21554841]),
        (Yogi(), [1.09049876, 1.21482630]),
        (Adam(v_init=0.0, bias_correction=True), [1.09090909, 1.18368558]),
    ],
    ids=str,
)
def test_two_rounds_by_hand(optimizer, expected):
    """Server's lr 0.1, tau 1e-3, betas .9 and .99 (Adagrad's beta1: 0). Two clients of equal size have the losses
    w^2 / 2 and (w - 4)^2 / 2, from w = 1: one step each with learning rate 0.1 gives the mean update (2 - w) / 10.
    """
    w = {"w": torch.ones(1, dtype=torch.float64)}
    memory = optimizer.init(w)
    for value in expected:
        w, memory = optimizer.step(w, {"w": (2 - w["w"]) / 10}, memory, 0.1)
        assert float(w["w"]) == pytest.approx(value, abs=5e-9)


def test_moments_by_hand():
    """Two entries, D (3, -4), v from tau^2 .04. m: .1 D.

    v: Adagrad .04 + D^2; Adam .99 * .04 + .01 D^2; Yogi .04 + .01 D^2.
    """
    w, d = {"w": torch.zeros(2, dtype=torch.float64)}, {"w": torch.tensor([3.0, -4.0], dtype=torch.float64)}
    expected = {Adagrad: [9.04, 16.04], Adam: [0.1296, 0.1996], Yogi: [0.13, 0.20]}
    for kind, v in expected.items():
        optimizer = kind(lr=1.0, beta1=0.9, tau=0.2)
        stepped, memory = optimizer.step(w, d, optimizer.init(w), 0.1)
        assert memory["m"]["w"].tolist() == pytest.approx([0.3, -0.4])
        assert memory["v"]["w"].tolist() == pytest.approx(v)
        moved = [m / (each**0.5 + 0.2) for m, each in zip([0.3, -0.4], v)]
        assert stepped["w"].tolist() == pytest.approx(moved)


@pytest.mark.parametrize("kind", [Adam, Yogi])
def test_the_neutral_setting_is_fedavg(kind):
    neutral = FedAvg(server_optimizer=kind(lr=1.0, beta1=0.0, beta2=1.0, v_init=0.0, tau=1.0))
    assert gap(play(neutral, "norm"), play(FedAvg(), "norm")) == 0


@pytest.mark.parametrize("kind", ALL)
def test_running_statistics_take_the_plain_mean(kind):
    """An adaptive step on a running variance could make it negative."""
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL)
    for done in rounds(FedAvg(server_optimizer=kind(tau=0.1)), ctx, 3):
        assert set(done.after["optimizer"]["m"]) == set(done.after["optimizer"]["v"]) == set(ctx.weights)
        share = ctx.sizes[done.ids].double() / ctx.sizes[done.ids].sum()
        for name in ctx.model.buffers:
            expected = torch.einsum("k,k...->...", share, done.models[name])
            torch.testing.assert_close(done.after["params"][name], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ALL)
def test_single_precision_models_stay_so(kind):
    settings = {"bias_correction": True} if kind is not Adagrad else {}
    state = play(FedAvg(server_optimizer=kind(**settings)), "norm", dtype=torch.float32)
    assert {leaf.dtype for leaf in state["params"].values()} == {torch.float32}


@pytest.mark.parametrize("kind", ALL)
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(FedAvg(server_optimizer=kind(lr=0.01, tau=0.1)), "norm")


@pytest.mark.parametrize("optimizer", [Adagrad(), Adam(bias_correction=True), Yogi()], ids=str)
def test_resumes(optimizer):
    assert_resumes(FedAvg(server_optimizer=optimizer), "norm")


def test_settings_are_checked():
    for change in ({"lr": 0}, {"beta1": 1}, {"beta2": 1.1}, {"tau": 0}, {"v_init": -1}):
        with pytest.raises(ConfigError, match=rf"server_optimizer\.{next(iter(change))}="):
            Adam(**change)
    for tau in (1e20, 1e200):  # beyond what a second moment can hold
        with pytest.raises(ConfigError, match=r"server_optimizer\.tau=1e\+.*: must be at most 1e\+18"):
            Adam(tau=tau)
    assert torch.isfinite(Adam(tau=1e18).init({"a": torch.zeros(1)})["v"]["a"]).all()
    with pytest.raises(ConfigError, match=r"server_optimizer\.bias_correction=true: needs .*beta2 below 1"):
        Adam(beta2=1.0, bias_correction=True)
