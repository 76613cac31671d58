"""The server's learning rate along the mean update; running statistics become the clients' mean whatever it is."""

import math

import pytest
import torch
from worlds import LOCAL, assert_mechanisms_agree, gap, make_context, make_model, make_world, play, rounds

from fedexp.algorithms.fedavg import FedAvg
from fedexp.errors import ConfigError
from fedexp.server_optimizer.sgd import Sgd


def test_step_by_hand():
    params, update = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.4, -0.8])}
    stepped, memory = Sgd(lr=0.5).step(params, update, Sgd().init(params), 0.1)
    assert stepped["w"].tolist() == pytest.approx([1.2, 1.6]) and memory == {}


def test_lr_1_is_the_mean_of_the_models():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL)
    (only,) = rounds(FedAvg(), ctx, 1)
    share = ctx.sizes[only.ids].double() / ctx.sizes[only.ids].sum()
    for name, models in only.models.items():
        expected = torch.einsum("k,k...->...", share, models)
        torch.testing.assert_close(only.after["params"][name], expected, rtol=0, atol=1e-14)


def test_half_the_step_for_trained_entries_and_the_mean_for_statistics():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL)
    start = ctx.model.params()
    half, whole = (rounds(FedAvg(server_optimizer=Sgd(lr=lr)), ctx, 1)[-1].after["params"] for lr in (0.5, 1.0))
    for name, value in half.items():
        if name in ctx.model.buffers:
            assert torch.equal(value, whole[name])
        else:
            torch.testing.assert_close(value, (start[name] + whole[name]) / 2, rtol=0, atol=1e-14)
    assert ctx.model.buffers


def test_mechanisms_agree():
    assert_mechanisms_agree(FedAvg(server_optimizer=Sgd(lr=0.7)), "norm")
    assert gap(play(FedAvg(server_optimizer=Sgd(lr=0.7))), play(FedAvg())) > 1e-3


def test_settings_are_checked():
    for lr in (0.0, -1.0, math.inf):
        with pytest.raises(ConfigError, match=r"server_optimizer\.lr="):
            Sgd(lr=lr)
