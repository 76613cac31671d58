"""FedRep: a round by hand, what is frozen in which pass, neutral setting, bytes, mechanisms, resume, tuned heads."""

from dataclasses import replace

import pytest
import torch
from quadratics import Squares, layers, two_layers
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
from fedexp.algorithms.fedper import FedPer
from fedexp.algorithms.fedrep import FedRep
from fedexp.engine import Local, client_rows
from fedexp.errors import ConfigError
from fedexp.round import personal_models, tuned_models

HEAD = ("head.weight", "head.bias")
NORMALISATION = [f"encoder.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")]
BOTH = torch.tensor([0, 1])


class OnSquares(FedRep, Squares):
    """FedRep over (b h - y)^2 / 2."""


def used(algorithm, done, ids=BOTH):
    return personal_models(algorithm, done.after, ids, done.ctx)


def test_a_round_by_hand():
    """A head's step to .9 and 1.1, then a body's: 1 - .1 * .9 * .9 = .919 and 1 + .1 * 1.1 * .9 = 1.099."""
    algorithm = OnSquares(head_epochs=1)
    (only,) = rounds(algorithm, two_layers(), 1)
    (b, first), (again, second) = map(layers, used(algorithm, only))
    assert (first, second) == pytest.approx((0.9, 1.1))
    assert only.models["encoder.weight"].flatten()[only.ids.argsort()].tolist() == pytest.approx([0.919, 1.099])
    assert b == again == pytest.approx(1.009)
    assert layers(only.after["params"]) == pytest.approx((1.009, 1.0))


def test_each_pass_has_an_optimizer_of_its_own_and_leaves_the_rest_alone():
    """Momentum .5, decay .1, two steps of the head and one of the body; in a second round heads go on from where
    they were."""
    algorithm, w = OnSquares(head_epochs=2), {"b": 1.0, "h": [1.0, 1.0]}
    done = rounds(algorithm, two_layers(momentum=0.5, weight_decay=0.1), 2)
    for each in done:
        ends = []
        for k, y in enumerate((0, 2)):
            h, b, v = w["h"][k], w["b"], 0.0
            for _ in range(2):
                v = 0.5 * v + b * (b * h - y) + 0.1 * h
                h -= 0.1 * v
            ends.append(b - 0.1 * (h * (b * h - y) + 0.1 * b))
            w["h"][k] = h
        w["b"] = sum(ends) / 2
        found = list(map(layers, used(algorithm, each)))
        assert found == [pytest.approx((w["b"], h), rel=1e-12) for h in w["h"]]


def test_the_loss_that_is_reported_is_the_body_s():
    (only,) = rounds(OnSquares(head_epochs=1), two_layers(), 1)
    assert only.loss[only.ids.argsort()].tolist() == pytest.approx([0.9**2 / 2, 0.9**2 / 2])
    assert only.examples == 4  # two epochs of one example each


class Headless(FedRep):
    """Nothing is kept."""

    def is_head(self, name):
        return False


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_without_a_head_it_is_fedavg(kind):
    assert gap(play(Headless(head_epochs=0), kind), play(FedAvg(), kind)) == 0
    assert gap(play(FedRep(), kind), play(FedPer(), kind)) > 1e-3


def test_only_the_body_crosses():
    world = make_world()
    (only,) = rounds(FedRep(head_epochs=1), make_context(make_model("norm", world), world, LOCAL), 1)
    entries = 4 * 9 + 4 + 4 * 4  # convolution, BatchNorm (weights and statistics); not the head's 36 * 4 + 4
    assert (only.bytes_up, only.bytes_down) == (3 * entries * 8, 3 * entries * 8)
    (own,) = rounds(FedRep(head_epochs=1, normalisation="local"), only.ctx, 1)
    assert (own.bytes_up, own.bytes_down) == (3 * (4 * 9 + 4) * 8, 3 * (4 * 9 + 4) * 8)


def test_running_statistics_move_with_the_body():
    """Ten epochs of the head before leave them as one does: of a normalisation whose input no weights change."""
    world = make_world()
    model = make_model("norm", world)
    local = Local(epochs=1, batch_size=40, lr=1e-12, momentum=0.0)
    for kind in ("shared", "local"):
        ctx = make_context(model, world, local)
        (short,), (long,) = (rounds(FedRep(head_epochs=n, normalisation=kind), ctx, 1) for n in (1, 10))
        for name in NORMALISATION:
            first, second = (
                each.after["params"][name] if kind == "shared"
                else client_rows.take(each.after["memory"], each.ids)["own"]["private"][name] for each in (short, long)
            )  # fmt: skip
            torch.testing.assert_close(first, second, rtol=0, atol=1e-9)
            before = model.params()[name]
            assert "running" not in name or not torch.allclose(first, before.expand_as(first))


def test_normalisation_that_stays():
    """A participant's is its own, the server's what it was."""
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL, cohort=2)
    algorithm = FedRep(head_epochs=1, normalisation="local")
    (only,) = rounds(algorithm, ctx, 1)
    before = ctx.model.params()
    for client, params in enumerate(used(algorithm, only, torch.arange(6))):
        for name in (*NORMALISATION, *HEAD):
            assert params[name].equal(before[name]) == (client not in only.ids.tolist())
            assert only.after["params"][name].equal(before[name])
        assert params["encoder.0.weight"].equal(only.after["params"]["encoder.0.weight"])


@pytest.mark.parametrize("normalisation", ["shared", "local"])
def test_mechanisms_agree(normalisation):
    """The clients' own entries as well."""
    algorithm = FedRep(head_epochs=3, normalisation=normalisation)
    assert_mechanisms_agree(algorithm, "norm")
    found = [play(algorithm, "norm", **how) for how in ({}, {"workers": 2}, {"mechanism": "vectorized"})]
    everyone = torch.arange(6)
    first, *others = (client_rows.take(each["memory"], everyone)["own"]["private"] for each in found)
    for other, tolerance in zip(others, (1e-12, 1e-9)):
        assert gap({"params": first}, {"params": other}) < tolerance
    assert gap(found[0], found[1]) < 1e-12


def test_resumes():
    assert_resumes(FedRep(head_epochs=1), "norm")


def test_heads_that_are_trained_on_for_evaluation():
    """tuning_epochs=[2]: two more epochs of the head, from where the client's is."""
    algorithm = OnSquares(head_epochs=1, tuning_epochs=[2])
    (only,) = rounds(algorithm, two_layers(), 1)
    (tuner,) = algorithm.tuning().values()
    b, h = 1.009, [0.9, 1.1]
    for k, y in enumerate((0, 2)):
        for _ in range(2):
            h[k] -= 0.1 * b * (b * h[k] - y)
    found = [layers(params) for params in tuned_models(tuner, algorithm, only.after, BOTH, only.ctx)]
    assert found == [pytest.approx((b, each)) for each in h]
    assert FedRep().tuning() == {}


def test_a_model_that_is_all_head_is_refused():
    world = make_world()
    with pytest.raises(ConfigError, match=r"^model=.*no weights"):
        FedRep().check(make_context(make_model("linear", world), world, LOCAL))
    with pytest.raises(ConfigError, match=r"algorithm\.head_epochs=-1"):
        FedRep(head_epochs=-1)
    assert replace(FedRep(), head_epochs=0).passes(LOCAL)[0].functions.head_epochs == 0
