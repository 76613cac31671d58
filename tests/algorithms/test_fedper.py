"""FedPer: two clients by hand, neutral setting, what crosses, what each client keeps and uses."""

import pytest
import torch
from quadratics import Squares, two_layers
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
from fedexp.round import personal_models


class PersonalSquares(FedPer, Squares):
    """FedPer over the same losses."""


@pytest.mark.parametrize(("sizes", "body"), [([1, 1], 1.0), ([1, 3], 1.05)])
def test_one_round_by_hand(sizes, body):
    """Steps to b = h = 0.9 and 1.1: bodies are averaged by n_k, heads stay, each with its client."""
    ctx = two_layers(sizes)
    (only,) = rounds(PersonalSquares(), ctx, 1)
    models = personal_models(PersonalSquares(), only.after, torch.tensor([0, 1]), ctx)
    assert [float(params["encoder.weight"]) for params in models] == pytest.approx([body, body])
    assert [float(params["head.weight"]) for params in models] == pytest.approx([0.9, 1.1])
    assert float(only.after["params"]["head.weight"]) == 1
    averaged = rounds(Squares(), ctx, 1)[0].after["params"]
    assert float(averaged["head.weight"]) == pytest.approx(body)


def test_the_second_round_by_hand():
    """From b = 1 with own heads: h (b h - y) = 0.81 and -0.99, b (b h - y) = 0.9 and -0.9; b = 1 - 0.1 (-0.09)."""
    ctx = two_layers([1, 1])
    after = rounds(PersonalSquares(), ctx, 2)[-1].after
    models = personal_models(PersonalSquares(), after, torch.tensor([0, 1]), ctx)
    assert [float(params["encoder.weight"]) for params in models] == pytest.approx([1.009, 1.009])
    assert [float(params["head.weight"]) for params in models] == pytest.approx([0.81, 1.19])


def test_only_the_body_crosses():
    world = make_world()
    (only,) = rounds(FedPer(), make_context(make_model("norm", world), world, LOCAL), 1)
    entries = 4 * 9 + 4 + 4 * 4  # convolution, BatchNorm (weights and statistics); not the head's 36 * 4 + 4
    assert (only.bytes_up, only.bytes_down) == (3 * entries * 8, 3 * entries * 8)
    assert set(only.uploads["update"]).isdisjoint({"head.weight", "head.bias"})


class Headless(FedPer):
    """Nothing is kept."""

    def is_head(self, name):
        return False


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_without_a_head_it_is_fedavg(kind):
    assert gap(play(Headless(), kind), play(FedAvg(), kind)) == 0
    assert gap(play(FedPer(), kind), play(FedAvg(), kind)) > 1e-3


def test_a_single_client_trains_as_under_fedavg():
    """Whose averages are its own model, with nobody to differ from."""
    world = make_world([30])
    ctx = make_context(make_model("norm", world), world, LOCAL, cohort=1)
    mine = rounds(FedPer(), ctx, 3)[-1].after
    (params,) = personal_models(FedPer(), mine, torch.tensor([0]), ctx)
    assert gap({"params": params}, rounds(FedAvg(), ctx, 3)[-1].after) < 1e-12


def test_who_never_took_part_uses_the_initial_head():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL, cohort=2)
    (only,) = rounds(FedPer(), ctx, 1)
    before = ctx.model.params()
    for client, params in enumerate(personal_models(FedPer(), only.after, torch.arange(6), ctx)):
        for name in ("head.weight", "head.bias"):
            assert torch.equal(params[name], before[name]) == (client not in only.ids.tolist())
            assert torch.equal(only.after["params"][name], before[name])
        assert torch.equal(params["encoder.0.weight"], only.after["params"]["encoder.0.weight"])


@pytest.mark.parametrize("workers", [1, 2])
def test_mechanisms_agree(workers):
    assert_mechanisms_agree(FedPer(), "norm", workers=workers)


def test_resumes():
    assert_resumes(FedPer(), "norm")
