"""pFedMe: a batch by hand, warm starts, neutral setting, bytes, personal models, mechanisms, resume, refusals."""

from dataclasses import replace

import pytest
import torch
from quadratics import NAME, Quadratic, pair, weight
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

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.pfedme import PFedMe
from fedexp.engine import Local, client_rows
from fedexp.errors import ConfigError
from fedexp.measure.clients import evaluate
from fedexp.round import personal_models
from fedexp.server_optimizer.sgd import Sgd

PLAIN = replace(LOCAL, momentum=0.0, weight_decay=0.0, max_grad_norm=None)
SLOW = Local(steps=1, batch_size=100, lr=0.005, momentum=0.0)


class OnQuadratics(PFedMe, Quadratic):
    """pFedMe over quadratics."""


def after(algorithm, local=SLOW, count=1):
    """(the clients' theta, their w_k in the last round, w)."""
    done = rounds(algorithm, pair(local=local), count)[-1]
    theta = personal_models(algorithm, done.after, torch.tensor([0, 1]), done.ctx)
    trained = done.models[NAME].flatten()[done.ids.argsort()].tolist()
    return list(map(weight, theta)), trained, weight(done.after["params"])


def test_a_batch_by_hand():
    """lam 15, eta .005: five steps of .1, one step, and many small ones that reach the minimiser."""
    theta, trained, _ = after(OnQuadratics(personal_lr=0.1))
    assert theta == pytest.approx([0.93264, 1.20208], abs=5e-7)
    assert trained == pytest.approx([0.994948, 1.015156], abs=5e-7)
    theta, trained, w = after(OnQuadratics(personal_lr=0.1, inner_steps=1))
    assert (theta, trained) == (pytest.approx([0.9, 1.3]), pytest.approx([0.9925, 1.0225]))
    assert w == pytest.approx(1.0075)
    theta, trained, w = after(OnQuadratics(personal_lr=0.02, inner_steps=100))
    assert (theta, trained) == (pytest.approx([0.9375, 1.1875]), pytest.approx([0.9953125, 1.0140625]))
    assert w == pytest.approx(1.0046875)


def test_the_server_s_beta_is_its_learning_rate():
    algorithm = OnQuadratics(personal_lr=0.02, inner_steps=100, server_optimizer=Sgd(lr=2.0))
    assert after(algorithm)[2] == pytest.approx(1.009375)


@pytest.mark.parametrize("warm", [True, False])
def test_two_batches_and_two_rounds_by_hand(warm):
    """theta goes on from the first batch to the second, or begins at w_k; in a round it begins at w."""
    algorithm = OnQuadratics(inner_steps=2, personal_lr=0.05, mu=0.3, warm_start=warm)
    thetas, _, w = after(algorithm, replace(SLOW, steps=2), count=2)
    expected = 1.0
    for _ in range(2):
        ends, last = [], []
        for center in (0.0, 4.0):
            own = theta = expected
            for _ in range(2):
                theta = theta if warm else own
                for _ in range(2):
                    theta -= 0.05 * (theta - center + 15 * (theta - own) + 0.3 * theta)
                own -= 0.005 * 15 * (own - theta)
            ends.append(own)
            last.append(theta)
        expected = sum(ends) / 2
    assert w == pytest.approx(expected, rel=1e-12)
    assert thetas == pytest.approx(last, rel=1e-12)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_one_inner_step_from_w_is_fedavg(kind):
    """With eta lam eta_p for FedAvg's learning rate, also as it decays; statistics included."""
    algorithm = PFedMe(inner_steps=1, warm_start=False, lam=10.0, personal_lr=0.5)
    mine = play(algorithm, kind, local=replace(PLAIN, lr=0.02))
    assert gap(mine, play(FedAvg(), kind, local=replace(PLAIN, lr=0.1))) < 1e-12


def test_bytes_are_fedavg_s():
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(PFedMe(), make_context(model, world, PLAIN), 1)
    assert only.bytes_up == only.bytes_down == 3 * tree.size_in_bytes(model.params())


def test_both_models_are_evaluated_and_who_never_took_part_has_the_initial_one():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, replace(PLAIN, lr=0.03), cohort=2)
    (only,) = rounds(PFedMe(), ctx, 1)
    before = ctx.model.params()
    for client, params in enumerate(personal_models(PFedMe(), only.after, torch.arange(6), ctx)):
        drawn = client in only.ids.tolist()
        assert all(params[name].equal(before[name]) != drawn for name in params)
    found, table = evaluate(PFedMe(), only.after, torch.arange(6), ctx, world, "train")
    assert list(table) == ["round", "examples", "accuracy", "accuracy/global"]
    assert found["client_coverage"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("warm", [True, False])
def test_mechanisms_agree(warm):
    """What clients keep as well."""
    algorithm = PFedMe(warm_start=warm, inner_steps=2)
    local = replace(PLAIN, lr=0.03, max_grad_norm=1.0)
    found = [play(algorithm, "norm", local=local, **how) for how in ({}, {"workers": 2}, {"mechanism": "vectorized"})]
    first, *others = (client_rows.take(each["memory"], torch.arange(6))["own"] for each in found)
    for other, state, tolerance in zip(others, found[1:], (1e-12, 1e-9)):
        for kind in ("weights", "statistics"):
            assert gap({"params": first[kind]}, {"params": other[kind]}) < tolerance
        assert gap(found[0], state) < tolerance
    assert_mechanisms_agree(algorithm, "cnn", local=local)


def test_resumes():
    assert_resumes(PFedMe(), "norm", local=PLAIN)


def test_what_it_does_not_cover_is_refused():
    world = make_world()
    for change in ({"momentum": 0.9}, {"weight_decay": 0.1}, {"optimizer": "adam"}):
        ctx = make_context(make_model("linear", world), world, replace(PLAIN, **change))
        with pytest.raises(ConfigError, match=rf"local\.{next(iter(change))}=.*plain gradient steps"):
            PFedMe().check(ctx)
    ctx = make_context(make_model("linear", world), world, replace(PLAIN, lr=0.1))
    with pytest.raises(ConfigError, match=r"^local\.lr=0\.1: times algorithm\.lam=15 must be below 1"):
        PFedMe().check(ctx)
    for change in ({"lam": 0.0}, {"inner_steps": 0}, {"personal_lr": 0.0}, {"mu": -1.0}):
        with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(change))}="):
            PFedMe(**change)
