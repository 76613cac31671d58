"""LG-FedAvg: a round by hand, which layers are shared, neutral setting, bytes, its first stage, mechanisms, resume."""

import pytest
import torch
from quadratics import Squares, layers, two_layers
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
    run_stages,
)

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.lg_fedavg import LGFedAvg
from fedexp.algorithms.lg_fedavg import layers as layers_of
from fedexp.errors import ConfigError
from fedexp.models import Classifier, Model
from fedexp.models.resnet import resnet9
from fedexp.round import personal_models
from fedexp.server_optimizer.momentum import Momentum


class OnSquares(LGFedAvg, Squares):
    """LG-FedAvg over (b h - y)^2 / 2."""


@pytest.mark.parametrize(("sizes", "head"), [((1, 1), 1.0), ((1, 3), 1.05)])
def test_a_round_by_hand(sizes, head):
    """Steps to b = h = .9 and 1.1: heads are averaged by n_k, bodies stay, each with its client."""
    (only,) = rounds(OnSquares(), two_layers(sizes), 1)
    found = personal_models(OnSquares(), only.after, torch.tensor([0, 1]), only.ctx)
    assert [layers(params) for params in found] == [pytest.approx((body, head)) for body in (0.9, 1.1)]
    assert layers(only.after["params"]) == pytest.approx((1, head))


def test_layers_from_the_bottom():
    body = [nn.BatchNorm2d(1), nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5)]
    found = layers_of(Model(Classifier(nn.Sequential(*body), nn.Linear(5, 4))))
    assert [sorted({name.rpartition(".")[0] for name in layer}) for layer in found] == [
        ["encoder.0"], ["encoder.1", "encoder.2"], ["encoder.5"], ["head"],
    ]  # fmt: skip
    assert "encoder.2.running_var" in found[1]
    model = Model(resnet9((3, 32, 32), 4))
    names = [name for layer in layers_of(model) for name in layer]
    assert sorted(names) == sorted(model.params())


@pytest.mark.parametrize(("shared", "entries"), [(1, 36 * 4 + 4), (2, 36 * 4 + 4 + 4 * 9 + 4 + 4 * 4)])
def test_only_the_top_layers_cross(shared, entries):
    world = make_world()
    (only,) = rounds(LGFedAvg(shared_layers=shared), make_context(make_model("norm", world), world, LOCAL), 1)
    assert (only.bytes_up, only.bytes_down) == (3 * entries * 8, 3 * entries * 8)


@pytest.mark.parametrize(("kind", "count"), [("linear", 1), ("cnn", 2), ("norm", 2)])
def test_with_all_layers_shared_it_is_fedavg(kind, count):
    assert gap(play(LGFedAvg(shared_layers=count), kind), play(FedAvg(), kind)) == 0


def test_after_rounds_of_fedavg():
    """The first two rounds are FedAvg's, all of the model; then clients go on from its lower layers."""
    algorithm = LGFedAvg(pretraining_rounds=2, server_optimizer=Momentum(beta=0.5))

    def context():
        world = make_world()
        return make_context(make_model("norm", world), world, LOCAL, cohort=2, rounds=3)

    state, done = run_stages(algorithm, context())
    assert [name for name, _ in done] == ["fedavg", "fedavg", "lg_fedavg"]
    plain = rounds(FedAvg(server_optimizer=Momentum(beta=0.5)), context(), 2)
    assert gap(done[1][1].after, plain[-1].after) == 0
    assert done[1][1].bytes_up == plain[-1].bytes_up > done[2][1].bytes_up
    checkpoint, drawn = plain[-1].after["params"], done[2][1].ids.tolist()
    for client, params in enumerate(personal_models(algorithm, state, torch.arange(6), done[2][1].ctx)):
        assert params["encoder.0.weight"].equal(checkpoint["encoder.0.weight"]) == (client not in drawn)


def test_mechanisms_agree():
    assert_mechanisms_agree(LGFedAvg(), "norm")
    assert gap(*(play(LGFedAvg(), "norm", workers=count) for count in (1, 2))) < 1e-12


@pytest.mark.parametrize("pretraining", [0, 2])
def test_resumes(pretraining):
    assert_resumes(LGFedAvg(pretraining_rounds=pretraining), "norm")


def test_more_layers_than_there_are_are_refused():
    world = make_world()
    with pytest.raises(ConfigError, match=r"algorithm\.shared_layers=3: must be at most 2"):
        LGFedAvg(shared_layers=3).check(make_context(make_model("cnn", world), world, LOCAL))
