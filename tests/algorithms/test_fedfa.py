"""FedFA: its weights and a round by hand, the neutral setting, bytes, mechanisms, resume."""

import math

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
from fedexp.algorithms.fedfa import FedFA
from fedexp.engine import Local, client_rows
from fedexp.errors import ConfigError
from fedexp.selection.clusamp import CluSamp
from fedexp.selection.full import Full
from fedexp.selection.power_of_choice import PowerOfChoice
from fedexp.selection.uniform import Uniform
from fedexp.server_optimizer.fedfa import FedFAMomentum

ONE_EPOCH = Local(epochs=1, batch_size=8, lr=0.1)


def test_weights_by_hand():
    """acc .2, .8, 1: shares .1, .4, .5; f 1, 1, 2: shares .25, .25, .5."""
    accuracy, participations = torch.tensor([0.2, 0.8, 1.0]), torch.tensor([1, 1, 2])
    a = [-math.log2(share + 1e-6) for share in (0.1, 0.4, 0.5)]
    b = [-math.log2(share + 1e-5) for share in (0.75, 0.75, 0.5)]
    only_a = FedFA().weights(accuracy, participations)
    assert only_a.tolist() == pytest.approx([3.32191 / 5.64384, 1.32192 / 5.64384, 1.0 / 5.64384], abs=1e-4)
    assert only_a[0] > only_a[1] > only_a[2], "the less accurate weighs more"
    mixed = FedFA(alpha=0.3).weights(accuracy, participations)
    expected = [0.3 * x / sum(a) + 0.7 * y / sum(b) for x, y in zip(a, b)]
    assert mixed.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("accuracy", [[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.5, 0.5, 0.5]])
def test_weights_sum_to_one_and_are_finite_at_the_clamps(alpha, accuracy):
    weights = FedFA(alpha=alpha).weights(torch.tensor(accuracy), torch.tensor([1, 7, 30]))
    assert float(weights.sum()) == pytest.approx(1)
    assert (weights >= 0).all()


def test_no_accuracy_counts_as_a_thousandth():
    once = torch.ones(2)
    nothing = FedFA().weights(torch.tensor([0.0, 0.5]), once)
    torch.testing.assert_close(nothing, FedFA().weights(torch.tensor([0.001, 0.5]), once))


def test_one_client_alone_gets_all_the_weight():
    assert FedFA(alpha=0.5).weights(torch.tensor([0.7]), torch.tensor([3])).tolist() == pytest.approx([1])


@pytest.mark.parametrize("sign", [-1, 1])
def test_server_momentum_by_hand(sign):
    """D is 2, then 2 - w, with gamma 0.5; eta is 0.1, then 0.05."""
    momentum = FedFAMomentum(gamma=0.5, sign=sign)
    w = {"w": torch.zeros(1)}
    first, memory = momentum.step(w, {"w": torch.tensor([2.0])}, momentum.init(w), 0.1)
    assert float(first["w"]) == pytest.approx(2 + sign * 0.1 * 1.0)  # m = 0.5 * 2
    second, _ = momentum.step(first, {"w": 2 - first["w"]}, memory, 0.05)
    m = 0.5 * 1.0 + 0.5 * (2 - (2 + sign * 0.1))
    assert float(second["w"]) == pytest.approx(2 + sign * 0.05 * m)


def test_the_server_s_lr_is_that_of_its_step_along_the_update():
    w, d = {"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}
    momentum = FedFAMomentum(lr=0.25, sign=1)
    assert momentum.step(w, d, momentum.init(w), 0.1)[0]["w"].tolist() == pytest.approx([1 + 0.25 * 2 + 0.1 * 2])


def test_rounds_from_what_was_uploaded():
    """w' = w + D - eta m for trained entries with the round's own eta, w + D for running statistics."""
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL, rounds=4)
    algorithm = FedFA(alpha=0.4, server_optimizer=FedFAMomentum(gamma=0.5))
    m = dict.fromkeys(ctx.weights, 0.0)
    for number, done in enumerate(rounds(algorithm, ctx, 4)):
        share = algorithm.weights(done.uploads["accuracy"], done.uploads["participations"])
        for name, old in done.before["params"].items():
            d = torch.einsum("k,k...->...", share, done.uploads["update"][name])
            expected = old + d
            if name in m:
                m[name] = 0.5 * m[name] + 0.5 * d
                expected = expected - 0.05 * 0.9**number * m[name]
            torch.testing.assert_close(done.after["params"][name], expected, rtol=0, atol=1e-13)


def test_equal_frequencies_equal_sizes_and_no_momentum_are_fedavg():
    ends = []
    for algorithm in (FedFA(alpha=0, server_optimizer=FedFAMomentum(sign=0)), FedAvg()):
        world = make_world([16, 16, 16, 16])
        ends.append(rounds(algorithm, make_context(make_model("norm", world), world, ONE_EPOCH, cohort=4), 3)[-1].after)
    assert gap(*ends) < 1e-13


def test_clients_send_the_accuracy_of_the_received_model_and_how_often_they_took_part():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, ONE_EPOCH, cohort=4)
    times = torch.zeros(6, dtype=torch.int64)
    for done in rounds(FedFA(), ctx, 3):
        times[done.ids] += 1
        assert done.uploads["participations"].tolist() == times[done.ids].tolist()
        for client, accuracy in zip(done.ids.tolist(), done.uploads["accuracy"]):
            rows, start = world.of(client), done.before["params"]
            hits = (ctx.model(start, world.prepare(rows), training=False).argmax(1) == world.y[rows]).double().mean()
            assert float(accuracy) == float(hits), "in double precision"
        kept = client_rows.take(done.after["memory"], torch.arange(6))["own"]["participations"]
        assert torch.equal(kept, times)
    assert times.max() == 3 > times.min()


def test_sends_two_numbers_more_than_fedavg():
    world = make_world(dtype=torch.float32)
    model = make_model("cnn", world, torch.float32)
    (only,) = rounds(FedFA(), make_context(model, world, ONE_EPOCH, precision="float32"), 1)
    size = 4 * sum(value.numel() for value in model.params().values())
    assert (only.bytes_up, only.bytes_down) == (3 * (size + 2 * 8), 3 * size)


MIXED = FedFA(alpha=0.5, server_optimizer=FedFAMomentum(gamma=0.5))


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(MIXED, kind)


def test_two_workers_are_one():
    assert gap(play(MIXED, "norm", workers=2), play(MIXED, "norm")) < 1e-12


def test_resumes():
    assert_resumes(MIXED, "norm")


def test_differs_from_fedavg():
    assert gap(play(FedFA()), play(FedAvg())) > 1e-3


def test_settings_are_checked():
    for change in ({"alpha": 1.5}, {"alpha": math.nan}):
        with pytest.raises(ConfigError, match=r"algorithm\.alpha="):
            FedFA(**change)
    for change in ({"gamma": 1.0}, {"sign": 2}, {"lr": 0.0}):
        with pytest.raises(ConfigError, match=rf"server_optimizer\.{next(iter(change))}="):
            FedFAMomentum(**change)


def test_a_selection_with_weights_of_its_own_is_refused():
    world = make_world()
    ctx = make_context(make_model("linear", world), world, cohort=6)
    FedFA(selection=Full()).check(ctx)
    ctx = make_context(make_model("linear", world), world)
    with pytest.raises(ConfigError, match=r"selection=CluSamp: .*use selection=uniform or full"):
        FedFA(selection=CluSamp()).check(ctx)
    FedFA(selection=PowerOfChoice()).check(ctx)
    for selection in (Uniform(merge="equal"), PowerOfChoice(merge="equal")):  # the weights alone are the matter
        with pytest.raises(ConfigError, match=r"^selection\.merge=equal: FedFA weighs .*use examples"):
            FedFA(selection=selection).check(ctx)
