"""APFL: two steps by hand, when the mixing weight moves, the global track that is FedAvg's, mechanisms, resume."""

import pytest
import torch
from quadratics import NAME, Quadratic, pair, weight
from torch import nn
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
from fedexp.algorithms.apfl import APFL
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Local, client_rows
from fedexp.errors import ConfigError
from fedexp.measure.clients import evaluate
from fedexp.models import Model
from fedexp.round import personal_models


class OnQuadratics(APFL, Quadratic):
    """APFL over quadratics."""


def own(state, clients):
    """(v, a) of each client."""
    kept = client_rows.take(state["memory"], torch.arange(clients))["own"]
    return kept["weights"], kept["mixing"]


def of_pair(state):
    v, a = own(state, 2)
    return v[NAME].flatten().tolist(), a.tolist()


def test_two_steps_by_hand():
    """a moves at every step: of A .5, .495375; of B .5, .458375. v .95, .90375 and 1.15, 1.28875."""
    (one,) = rounds(OnQuadratics(adaptive="step"), pair(), 1)
    assert of_pair(one.after) == (pytest.approx([0.95, 1.15]), pytest.approx([0.5, 0.5]))
    (two,) = rounds(OnQuadratics(adaptive="step"), pair(steps=2), 1)
    v, a = of_pair(two.after)
    assert v == pytest.approx([0.90375, 1.28875])
    assert a == pytest.approx([0.495375, 0.458375])
    trained = two.models[NAME].flatten()[two.ids.argsort()]
    assert trained.tolist() == pytest.approx([0.81, 1.57])
    mixed = [a * v + (1 - a) * w for v, a, w in zip(v, a, trained.tolist())]
    assert mixed == pytest.approx([0.85644141, 1.44108203], abs=5e-9)


def test_what_a_client_uses_is_mixed_with_the_newest_global_model():
    (two,) = rounds(OnQuadratics(adaptive="step"), pair(steps=2), 1)
    (v, a), w = of_pair(two.after), weight(two.after["params"])
    assert w == pytest.approx(1.19)
    found = personal_models(OnQuadratics(), two.after, torch.tensor([0, 1]), two.ctx)
    assert list(map(weight, found)) == pytest.approx([each * a[k] + (1 - a[k]) * w for k, each in enumerate(v)])


def test_a_weight_of_the_model_may_have_any_name():
    """Also those by which an algorithm's own values are called."""

    class Scaled(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.layer, self.name = nn.Linear(64, 4), name
            self.register_parameter(name, nn.Parameter(torch.tensor(0.5)))

        def forward(self, x):
            return self.layer(x.flatten(1)) * getattr(self, self.name)

    found = []
    for name in ("mixing", "gain"):
        torch.manual_seed(0)
        world = make_world()
        (done,) = rounds(APFL(adaptive="step"), make_context(Model(Scaled(name).double()), world, LOCAL), 1)
        found.append(
            [done.after["params"][name], *own(done.after, world.clients)[0][name], own(done.after, world.clients)[1]]
        )
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)


def test_adam_whose_steps_no_factor_scales_is_refused():
    world = make_world()
    ctx = make_context(make_model("linear", world), world, Local(optimizer="adam", momentum=0.0))
    with pytest.raises(ConfigError, match=r"local.optimizer=adam: under Adam's steps the factor a of"):
        APFL().check(ctx)


def test_when_the_mixing_weight_moves():
    """Once a round, at its first step: not in round 1, where v = w; then by v - w = .95 - 1.1 and grad f(u) = u."""
    never = rounds(OnQuadratics(), pair(steps=2), 2)
    assert all(of_pair(done.after)[1] == [0.5, 0.5] for done in never)
    first, second = rounds(OnQuadratics(adaptive="round"), pair(steps=2), 2)
    v, a = of_pair(first.after)
    assert a == [0.5, 0.5]
    assert v[0] == pytest.approx(0.95 - 0.1 * 0.5 * 0.925)
    w = weight(first.after["params"])
    moved = 0.5 - 0.1 * (v[0] - w) * (0.5 * v[0] + 0.5 * w)
    assert of_pair(second.after)[1][0] == pytest.approx(moved)


def test_the_mixing_weight_stays_between_0_and_1():
    """In round 1 v lags behind w, and a falls to 0; as round 2 begins v is nearer to the optimum, and a rises to 1."""
    local = Local(steps=3, batch_size=100, lr=0.5, momentum=0.0)
    algorithm = OnQuadratics(adaptive="step", mixing=0.9)
    done = rounds(algorithm, pair(local=local, centers=(-100.0, 100.0)), 2)
    assert [of_pair(each.after)[1] for each in done] == [[0, 0], [1, 1]]


def test_the_loss_is_the_global_model_s():
    """As FedAvg's: the own model's part of it has a gradient, but no value."""
    for mine, other in zip(rounds(OnQuadratics(), pair(steps=2), 2), rounds(Quadratic(), pair(steps=2), 2)):
        assert mine.loss.tolist() == pytest.approx(other.loss.tolist(), rel=1e-12)


def test_momentum_is_on_the_scaled_gradient():
    """a .25, rho .5: v's speed is .25 grad f(u), then half of it and the next."""
    algorithm = OnQuadratics(mixing=0.25)
    (only,) = rounds(algorithm, pair(local=Local(steps=2, batch_size=100, lr=0.1, momentum=0.5, weight_decay=0.1)), 1)
    v = w = 1.0
    fast = slow = 0.0
    for _ in range(2):
        u = 0.25 * v + 0.75 * w
        fast, slow = 0.5 * fast + w + 0.1 * w, 0.5 * slow + 0.25 * u + 0.1 * v
        w, v = w - 0.1 * fast, v - 0.1 * slow
    assert of_pair(only.after)[0][0] == pytest.approx(v)
    assert only.models[NAME].flatten()[only.ids.argsort()][0] == pytest.approx(w)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("settings", [{"mixing": 0.0}, {"mixing": 0.75}, {"adaptive": "step"}], ids=str)
def test_the_global_model_is_fedavg_s(kind, settings):
    """Also with gradients that are clipped: each model's by themselves."""
    assert gap(play(APFL(**settings), kind), play(FedAvg(), kind)) == 0


def test_with_nothing_of_its_own_a_client_uses_the_global_model():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL)
    done = rounds(APFL(mixing=0.0), ctx, 2)[-1]
    for params in personal_models(APFL(mixing=0.0), done.after, torch.arange(6), ctx):
        assert gap({"params": params}, done.after) == 0


def test_all_its_own_it_is_local_training():
    """a = 1: v steps along grad f(v), in every round from where it was; statistics are of these passes."""
    world = make_world([30])
    ctx = make_context(make_model("norm", world), world, LOCAL, cohort=1)
    done = rounds(APFL(mixing=1.0), ctx, 3)[-1]
    (params,) = personal_models(APFL(mixing=1.0), done.after, torch.tensor([0]), ctx)
    assert gap({"params": params}, rounds(FedAvg(), ctx, 3)[-1].after) < 1e-12


def test_bytes_are_fedavg_s():
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(APFL(adaptive="round"), make_context(model, world), 1)
    assert only.bytes_up == only.bytes_down == 3 * tree.size_in_bytes(model.params())


def test_both_models_are_evaluated():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL, cohort=4)
    done = rounds(APFL(mixing=0.75), ctx, 2)[-1]
    found, table = evaluate(APFL(mixing=0.75), done.after, torch.arange(6), ctx, world, "train")
    assert not table["accuracy"].equals(table["accuracy/global"])
    assert found["client_coverage"] == pytest.approx(
        float(client_rows.held(done.after["memory"], torch.arange(6)).double().mean())
    )
    before = ctx.model.params()
    for client, params in enumerate(personal_models(APFL(), done.after, torch.arange(6), ctx)):
        drawn = bool(client_rows.held(done.after["memory"], torch.tensor([client])))
        assert params["encoder.1.running_var"].equal(before["encoder.1.running_var"]) != drawn


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    """What clients keep as well: their models, statistics and mixing weights."""
    algorithm = APFL(adaptive="step")
    found = [play(algorithm, kind, **how) for how in ({}, {"workers": 2}, {"mechanism": "vectorized"})]
    first, *others = (client_rows.take(each["memory"], torch.arange(6))["own"] for each in found)
    flat = [{"params": {"/".join(path): leaf for path, leaf in tree.leaves(each)}} for each in (first, *others)]
    assert (flat[0]["params"]["mixing"] != 0.5).any()
    for other, state, tolerance in zip(flat[1:], found[1:], (1e-12, 1e-9)):
        assert gap(flat[0], other) < tolerance
        assert gap(found[0], state) < tolerance


def test_resumes():
    assert_resumes(APFL(adaptive="round"), "norm")
    assert_mechanisms_agree(APFL(adaptive="round"), "norm", count=2)


def test_settings_are_checked():
    for change in ({"mixing": 1.5}, {"adaptive": "always"}):
        with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(change))}="):
            APFL(**change)
