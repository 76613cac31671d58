"""Uniform selection: without replacement, every client as often as any other, a pure function of the round."""

import pytest
import torch
from quadratics import Quadratic, pair, weight
from worlds import LOCAL, make_context, make_model, make_world, rounds

from fedexp.algorithms.cadis import Cadis
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.feddyn import FedDyn
from fedexp.algorithms.fedfa import FedFA
from fedexp.errors import ConfigError
from fedexp.selection.uniform import Uniform


def context(cohort=2, seed=0):
    world = make_world()
    return make_context(make_model("linear", world), world, LOCAL, cohort, seed=seed)


def test_every_pair_is_drawn_as_often_as_any_other():
    """15 pairs of six clients in 3,000 draws: each within four deviations of 200."""
    ctx, gen = context(), torch.Generator().manual_seed(0)
    drawn = torch.stack([Uniform().select({}, ctx, gen).sort().values for _ in range(3000)])
    pairs, counts = (drawn[:, 0] * 6 + drawn[:, 1]).unique(return_counts=True)
    assert len(pairs) == 15 and (drawn[:, 0] < drawn[:, 1]).all()
    assert ((counts - 200).abs() < 4 * (3000 / 15 * 14 / 15) ** 0.5).all()


def test_updates_count_by_examples_or_alike():
    assert Uniform().weights(torch.tensor([2, 0, 1]), context()).tolist() == [17, 5, 40]
    assert Uniform(merge="equal").weights(torch.tensor([2, 0, 1]), context()).tolist() == [1, 1, 1]


def test_the_plain_mean_of_clients_of_unequal_size():
    """From w = 1 to .9 and 1.3: by n = 1 and 3 to 1.2, alike to 1.1."""
    for merge, expected in (("examples", 1.2), ("equal", 1.1)):
        (done,) = rounds(Quadratic(selection=Uniform(merge=merge)), pair((1, 3)), 1)
        assert weight(done.after["params"]) == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", [Cadis, FedFA, FedDyn])
def test_algorithms_that_weigh_updates_themselves_refuse_another_way(algorithm):
    with pytest.raises(ConfigError, match=r"^selection\.merge=equal: .*use examples$"):
        algorithm(selection=Uniform(merge="equal")).check(context())


def test_cohorts_follow_from_the_seed_and_the_round_alone():
    first, again, other = (
        [done.ids.tolist() for done in rounds(FedAvg(), context(seed=seed), 4)] for seed in (0, 0, 1)
    )
    assert first == again != other
    assert len({tuple(ids) for ids in first}) > 1
