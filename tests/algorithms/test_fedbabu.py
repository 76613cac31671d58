"""FedBABU: a round by hand, the head that stays as it was, neutral setting, bytes, fine-tuning, mechanisms, resume."""

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
from fedexp.algorithms.fedbabu import FedBABU
from fedexp.measure.clients import evaluate
from fedexp.round import personal_models, tuned_models

HEAD = ("head.weight", "head.bias")


class OnSquares(FedBABU, Squares):
    """FedBABU over (b h - y)^2 / 2."""


def test_a_round_by_hand():
    """Bodies to .9 and 1.1, the head stays 1; also under decay and momentum, in a second round."""
    (only,) = rounds(OnSquares(), two_layers(), 1)
    assert layers(only.after["params"]) == pytest.approx((1.0, 1.0))
    assert only.models["encoder.weight"].flatten()[only.ids.argsort()].tolist() == pytest.approx([0.9, 1.1])
    done = rounds(OnSquares(), two_layers((1, 3), weight_decay=0.1, momentum=0.9), 2)
    b = 1.0
    for each in done:
        b = sum(share * (b - 0.1 * ((b - y) + 0.1 * b)) for share, y in ((0.25, 0), (0.75, 2)))
        assert layers(each.after["params"]) == (pytest.approx(b), 1.0)


def test_fine_tuning_by_hand():
    """From b = h = 1 one step of both: (.9, .9) and (1.1, 1.1), joint; the head alone (1, .9) and (1, 1.1)."""
    for where, expected in (
        ("all", [(0.9, 0.9), (1.1, 1.1)]),
        ("head", [(1, 0.9), (1, 1.1)]),
        ("body", [(0.9, 1), (1.1, 1)]),
    ):
        algorithm = OnSquares(tuning_epochs=[1], tuning_layers=where)
        (only,) = rounds(algorithm, two_layers(), 1)
        found = tuned_models(algorithm.tuning()["tuned_1"], algorithm, only.after, torch.tensor([0, 1]), only.ctx)
        assert [layers(params) for params in found] == [pytest.approx(each) for each in expected]


class Headless(FedBABU):
    """The head is trained and shared like all else."""

    def is_head(self, name):
        return False


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_with_a_head_that_is_trained_and_shared_it_is_fedavg(kind):
    assert gap(play(Headless(), kind), play(FedAvg(), kind)) == 0


def test_the_head_never_moves_nor_crosses():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL)
    done = rounds(FedBABU(), ctx, 3)[-1]
    entries = 4 * 9 + 4 + 4 * 4  # convolution, BatchNorm; not the head's 36 * 4 + 4
    assert (done.bytes_up, done.bytes_down) == (3 * entries * 8, 3 * entries * 8)
    before = ctx.model.params()
    for params in (done.after["params"], *personal_models(FedBABU(), done.after, torch.arange(6), ctx)):
        moved = {name for name in params if not params[name].equal(before[name])}
        assert moved == {*params} - {*HEAD}


def test_before_and_after_fine_tuning_side_by_side():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL)
    algorithm = FedBABU(tuning_epochs=[8])
    (only,) = rounds(algorithm, ctx, 1)
    found, table = evaluate(algorithm, only.after, torch.arange(6), ctx, world, "train")
    assert found["client_accuracy_mean/tuned_8"] > found["client_accuracy_mean"]
    for client in range(6):  # the body with the initial head
        rows = world.of(client)
        right = ctx.model(only.after["params"], world.prepare(rows), training=False).argmax(1) == world.y[rows]
        assert table["accuracy"][client] == float(right.double().mean())


@pytest.mark.parametrize("normalisation", ["shared", "local"])
def test_mechanisms_agree(normalisation):
    algorithm = FedBABU(normalisation=normalisation)
    assert_mechanisms_agree(algorithm, "norm")
    assert gap(*(play(algorithm, "norm", workers=count) for count in (1, 2))) < 1e-12


def test_resumes():
    assert_resumes(FedBABU(), "norm")
