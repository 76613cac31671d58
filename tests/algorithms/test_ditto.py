"""Ditto: two rounds by hand, the global track that is FedAvg's, personal models, bytes, mechanisms, resume."""

from dataclasses import replace

import pytest
import torch
from quadratics import Quadratic, pair, weight
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
from fedexp.algorithms.ditto import Ditto
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.local_only import LocalOnly
from fedexp.engine import Local, client_rows
from fedexp.errors import ConfigError
from fedexp.measure.clients import evaluate
from fedexp.round import personal_models


class OnQuadratics(Ditto, Quadratic):
    """Ditto over quadratics."""


def own(algorithm, done, clients=2):
    return personal_models(algorithm, done.after, torch.arange(clients), done.ctx)


def test_rounds_by_hand():
    """v .9 and 1.3, w 1.1; then v .9 - .1 (.9 + .9 - 1.1) = .83 and 1.3 - .1 (-2.7 + .2) = 1.55, w 1.19."""
    first, second = rounds(OnQuadratics(), pair(), 2)
    assert list(map(weight, own(OnQuadratics(), first))) == pytest.approx([0.9, 1.3])
    assert list(map(weight, own(OnQuadratics(), second))) == pytest.approx([0.83, 1.55])
    assert [weight(done.after["params"]) for done in (first, second)] == pytest.approx([1.1, 1.19])


def test_the_fixed_point():
    """w = 2, v half way between it and the client's center."""
    done = rounds(OnQuadratics(), pair(), 150)[-1]
    assert weight(done.after["params"]) == pytest.approx(2, abs=1e-5)
    assert list(map(weight, own(OnQuadratics(), done))) == pytest.approx([1, 3], abs=1e-5)


def test_drawn_to_the_received_model_and_not_to_the_trained_one():
    """Two steps from v = w = 1 at lam 2: .9, then .9 - .1 (.9 + 2 (.9 - 1)) = .83."""
    (only,) = rounds(OnQuadratics(lam=2.0), pair(steps=2), 1)
    assert weight(own(OnQuadratics(), only)[0]) == pytest.approx(0.83)


def test_length_rate_and_momentum_of_the_personal_pass():
    """Three epochs of one step each at a rate of .05, with momentum from zero, beside one global step of .1."""
    algorithm = OnQuadratics(lam=0.0, personal_epochs=3, personal_lr=0.05)
    (only,) = rounds(algorithm, pair(local=Local(steps=1, batch_size=100, lr=0.1, momentum=0.5)), 1)
    v, speed = 1.0, 0.0
    for _ in range(3):
        speed = 0.5 * speed + v
        v -= 0.05 * speed
    assert weight(own(algorithm, only)[0]) == pytest.approx(v)
    assert weight(only.after["params"]) == pytest.approx(1.1)
    assert only.examples == 2 * (1 + 3)
    assert only.loss[only.ids.argsort()].tolist() == pytest.approx([0.5, 4.5])  # the global pass's


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_global_model_is_fedavg_s(kind, lam):
    assert gap(play(Ditto(lam=lam), kind), play(FedAvg(), kind)) == 0


def own_models(state):
    return client_rows.take(state["memory"], torch.arange(6))["own"]


def test_undrawn_it_is_local_training():
    """lam 0 on the batches of the global pass: what local_only gives, batch normalisation included."""
    mine, alone = (own_models(play(each, "norm")) for each in (Ditto(lam=0.0, order="same"), LocalOnly()))
    assert gap({"params": mine["personal"]}, {"params": alone["private"]}) == 0
    other = own_models(play(Ditto(lam=0.0), "norm"))
    assert gap({"params": mine["personal"]}, {"params": other["personal"]}) > 1e-3


def test_a_strong_pull_leads_to_the_received_model():
    """40 steps of .1 at lam 9, which is close to how far they may be drawn, and without."""
    distances = []
    for lam in (0.0, 9.0):
        world = make_world()
        ctx = make_context(make_model("cnn", world), world, Local(steps=40, batch_size=8, lr=0.1, momentum=0.0))
        (only,) = rounds(Ditto(lam=lam), ctx, 1)
        (params,) = personal_models(Ditto(lam=lam), only.after, only.ids[:1], ctx)
        distances.append(float(tree.squared_distance(params, ctx.model.params())))
    assert distances[1] < 0.1 * distances[0]


def test_bytes_are_fedavg_s():
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(Ditto(), make_context(model, world), 1)
    assert only.bytes_up == only.bytes_down == 3 * tree.size_in_bytes(model.params())


def test_who_never_took_part_has_the_initial_model():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL, cohort=2)
    (only,) = rounds(Ditto(), ctx, 1)
    before = ctx.model.params()
    for client, params in enumerate(own(Ditto(), only, 6)):
        drawn = client in only.ids.tolist()
        assert all(params[name].equal(before[name]) != drawn for name in params)


def test_both_models_are_evaluated():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL, cohort=4)
    done = rounds(Ditto(lam=0.1), ctx, 2)[-1]
    found, table = evaluate(Ditto(lam=0.1), done.after, torch.arange(6), ctx, world, "train")
    models = {"accuracy": own(Ditto(), done, 6), "accuracy/global": [done.after["params"]] * 6}
    for name, each in models.items():
        for client, params in enumerate(each):
            rows = world.of(client)
            right = ctx.model(params, world.prepare(rows), training=False).argmax(1) == world.y[rows]
            assert table[name][client] == float(right.double().mean())
    assert found["client_accuracy_mean/global"] == pytest.approx(table["accuracy/global"].mean())
    assert not table["accuracy"].equals(table["accuracy/global"])
    matched, _ = evaluate(Ditto(), done.after, torch.arange(6), ctx, world, "matched")
    assert {"client_accuracy_mean", "client_accuracy_worst10/global", "client_coverage"} <= {*matched}


def test_mechanisms_agree():
    """The clients' own models as well."""
    found = [play(Ditto(), "norm", **how) for how in ({}, {"workers": 2}, {"mechanism": "vectorized"})]
    first, *others = (own_models(each)["personal"] for each in found)
    for other, state, tolerance in zip(others, found[1:], (1e-12, 1e-9)):
        assert gap({"params": first}, {"params": other}) < tolerance
        assert gap(found[0], state) < tolerance
    assert_mechanisms_agree(Ditto(personal_epochs=1), "cnn")


def test_resumes():
    assert_resumes(Ditto(), "norm")


def test_settings_are_checked():
    for change in ({"lam": -1.0}, {"personal_epochs": 0}, {"personal_lr": 0.0}, {"order": "any"}):
        with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(change))}="):
            Ditto(**change)


def test_a_pull_beyond_the_global_model_is_refused():
    world = make_world()
    ctx = make_context(make_model("linear", world), world, replace(LOCAL, lr=0.5))
    with pytest.raises(ConfigError, match=r"^algorithm\.lam=4\.0: must be below 4, 2 over the learning rate"):
        Ditto(lam=4.0).check(ctx)
    Ditto(lam=4.0, personal_lr=0.4).check(ctx)
