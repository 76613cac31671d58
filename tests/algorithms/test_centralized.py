"""Centralized training: ordinary SGD over the union, without communication."""

from dataclasses import replace

import pytest
import torch
from worlds import LOCAL, by_hand, gap, make_context, make_model, make_world, play, run_stages

from fedexp.algorithms.centralized import Centralized, pooled
from fedexp.algorithms.fedavg import FedAvg
from fedexp.compression.top_k import TopK
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.selection.full import Full
from fedexp.selection.poisson import Poisson
from fedexp.selection.power_of_choice import PowerOfChoice
from fedexp.server_optimizer.momentum import Momentum


def test_equals_fedavg_of_a_single_client_with_all_data():
    world = make_world()
    alone = pooled(world)
    assert alone.sizes.tolist() == [120]
    assert torch.equal(alone.of(0), world.rows)
    model = make_model("cnn", world)
    ctx = make_context(model, world, Local(epochs=1, batch_size=16, lr=0.1), rounds=2)
    central, done = run_stages(Centralized(), ctx)
    fedavg, federated = run_stages(FedAvg(), replace(ctx, world=alone, cohort=1))
    assert gap(central, fedavg) == 0
    assert [(each.bytes_up, each.bytes_down) for _, each in done] == [(0, 0)] * 2
    assert all(each.bytes_up == each.bytes_down > 0 for _, each in federated)
    assert [each.examples for _, each in done] == [120, 120]


def test_the_learning_rate_decays_once_a_round():
    """One full-batch step a round on the union, with lr and then with half of it."""
    world = make_world([3, 9])
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0, lr_decay=0.5)
    state, _ = run_stages(Centralized(), make_context(model, world, local, cohort=2, rounds=2))
    union = pooled(world)
    expected = by_hand(model, by_hand(model, model.params(), union, 0, 0.5), union, 0, 0.25)
    for name, leaf in expected.items():
        torch.testing.assert_close(state["params"][name], leaf, rtol=0, atol=1e-12)


def test_it_is_not_the_mean_of_clients():
    """Pooling before training differs from averaging after it."""
    assert gap(play(Centralized(), count=1), play(FedAvg(), count=1, cohort=6)) > 1e-3


def test_many_clients_or_one_are_the_same_union():
    world = make_world()
    model = make_model("norm", world)
    states = [
        run_stages(Centralized(), make_context(model, each, LOCAL, rounds=2))[0] for each in (world, pooled(world))
    ]
    assert gap(*states) == 0


def test_its_only_client_is_all_that_full_participation_takes():
    assert gap(play(Centralized(selection=Full())), play(Centralized())) == 0


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"compression": TopK()}, "compression=TopK: has nothing to work on where all data are in one place"),
        ({"server_optimizer": Momentum()}, "server_optimizer=Momentum: has nothing to work on"),
        ({"selection": Poisson()}, "selection=Poisson: has no clients to draw from"),
        ({"selection": PowerOfChoice()}, "selection=PowerOfChoice: has no clients to draw from"),
        ({"selection": Full(merge="equal")}, "selection.merge=equal: has nothing to weigh"),
    ],
)
def test_parts_that_mean_nothing_without_clients_are_refused(parts, said):
    world = make_world()
    ctx = make_context(make_model("linear", world), world, LOCAL)
    with pytest.raises(ConfigError, match=said):
        Centralized(**parts).check(Centralized(**parts).stages(ctx)[0].context)
