"""MoFedSAM: rounds by hand, unequal clients, neutral settings, bytes, mechanisms, resume."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from worlds import (
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
from fedexp.algorithms.fedsam import FedSAM
from fedexp.algorithms.mofedsam import MoFedSAM
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.models import Classifier, Model
from fedexp.server_optimizer.sgd import Sgd


@dataclass(frozen=True, kw_only=True)
class Bowl(FedAvg):
    """(a^2 + 4 b^2) / 2 where a and b are the head's two biases."""

    def loss(self, model, params, batch, client):
        a, b = params["head.bias"]
        return (a.square() + 4 * b.square()) / 2


class OnBowl(MoFedSAM, Bowl):
    """MoFedSAM over the bowl."""


def played(algorithm, count, sizes=(1,), **settings):
    """[the head's biases, D] after each round, from biases of 3 and 1, with a learning rate of .1 and batches of 1."""
    world = make_world(list(sizes), 2)
    model = Model(Classifier(nn.Flatten(), nn.Linear(64, 2)).double())
    with torch.no_grad():
        model.net.head.bias.copy_(torch.tensor([3.0, 1.0]))
    local = Local(**{"epochs": 1, "batch_size": 1, "lr": 0.1, "momentum": 0.0, **settings})
    done = rounds(algorithm, make_context(model, world, local, cohort=len(sizes)), count)
    return [[each.after["params"]["head.bias"].tolist(), *_direction(each)] for each in done]


def _direction(done):
    return [done.after["direction"]["head.bias"].tolist()] if "direction" in done.after else []


def test_two_rounds_of_fedcm_by_hand():
    """g (3, 4), half of it: D (1.5, 2); then g (2.85, 3.2), direction (2.175, 2.6)."""
    first, second = played(OnBowl(radius=0.0, beta=0.5), 2)
    assert first == [pytest.approx([2.85, 0.8]), pytest.approx([1.5, 2.0])]
    assert second == [pytest.approx([2.6325, 0.54]), pytest.approx([2.175, 2.6])]


def test_a_round_by_hand_with_the_gradient_uphill():
    """g (3, 4), e (.3, .4), g' (3.3, 5.6), half of it."""
    (only,) = played(OnBowl(radius=0.5, beta=0.5), 1)
    assert only == [pytest.approx([2.835, 0.72]), pytest.approx([1.65, 2.8])]


def test_clients_of_unequal_size_and_unequal_steps():
    """One and three examples, beta .5. The first goes to (2.85, .8) in one step; the other's three steps multiply a by
    .95^3 and b by .8^3: (2.572125, .512). D: a quarter of (.15, .2) / .1 and three of (.427875, .488) / .3."""
    (only,) = played(OnBowl(radius=0.0, beta=0.5), 1, (1, 3))
    a, b = (2.85 + 3 * 2.572125) / 4, (0.8 + 3 * 0.512) / 4
    assert only == [pytest.approx([a, b]), pytest.approx([(1.5 + 3 * 1.42625) / 4, (2 + 3 * 0.488 / 0.3) / 4])]


def test_under_momentum_a_gradient_counts_as_often_as_it_is_taken():
    """Of a constant gradient g, D is beta g after the first round, whatever the momentum, the learning rate's decay and
    the server's learning rate; then beta g + (1 - beta) beta g."""

    class Slope(MoFedSAM):
        def loss(self, model, params, batch, client):
            a, b = params["head.bias"]
            return 2 * a - 3 * b

    algorithm = Slope(beta=0.25, server_optimizer=Sgd(lr=0.5))
    first, second = played(algorithm, 2, (4, 2), momentum=0.9, lr_decay=0.5)
    assert first[1] == pytest.approx([0.5, -0.75])
    assert second[1] == pytest.approx([0.875, -1.3125])


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_where_all_of_a_step_is_the_gradient_it_is_fedsam_and_without_a_radius_fedavg(kind):
    assert gap(play(MoFedSAM(beta=1.0), kind), play(FedSAM(), kind)) == 0
    assert gap(play(MoFedSAM(beta=1.0, radius=0.0), kind), play(FedAvg(), kind)) == 0
    assert gap(play(MoFedSAM(beta=0.5), kind), play(FedSAM(), kind)) > 1e-3


def test_bytes_are_a_second_model_down_and_a_number_up():
    """Of the direction the trained entries alone: running statistics have none."""
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(MoFedSAM(), make_context(model, world), 1)
    params = model.params()
    weights = tree.size_in_bytes({name: params[name] for name in model.weights})
    assert only.bytes_down == 3 * (tree.size_in_bytes(params) + weights)
    assert only.bytes_up == 3 * (tree.size_in_bytes(params) + 8)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(MoFedSAM(), kind)
    assert gap(*(play(MoFedSAM(), kind, workers=count) for count in (1, 2))) < 1e-12


def test_resumes():
    assert_resumes(MoFedSAM(), "norm")


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.beta=0"):
        MoFedSAM(beta=0.0)
    world = make_world()
    ctx = make_context(make_model("linear", world), world, Local(optimizer="adam", momentum=0.0))
    with pytest.raises(ConfigError, match=r"local\.optimizer=adam: MoFedSAM"):
        MoFedSAM().check(ctx)
