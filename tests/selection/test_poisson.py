"""Poisson sampling: how many and which, any algorithm, empty cohorts, mechanisms, resume."""

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
from fedexp.algorithms.fedcat import FedCat
from fedexp.algorithms.fedgen import FedGen
from fedexp.algorithms.scaffold import Scaffold
from fedexp.errors import ConfigError
from fedexp.selection.full import Full
from fedexp.selection.poisson import Poisson


def context(cohort=2, seed=0):
    world = make_world()
    return make_context(make_model("cnn", world), world, LOCAL, cohort, seed=seed)


def test_each_client_is_drawn_by_itself_with_the_same_probability():
    """Over many draws: K / N for each, nobody twice, and pairs as often as chance has them meet."""
    ctx, gen = context(), torch.Generator().manual_seed(0)
    drawn = torch.zeros(3000, 6, dtype=torch.float64)
    for row in drawn:
        ids = Poisson().select({}, ctx, gen)
        assert ids.tolist() == sorted(set(ids.tolist()))
        row[ids] = 1
    assert (drawn.mean(0) - 1 / 3).abs().max() < 4 * (2 / 9 / 3000) ** 0.5
    together = drawn.T @ drawn / 3000
    apart = together[~torch.eye(6, dtype=torch.bool)]
    assert (apart - 1 / 9).abs().max() < 4 * (8 / 81 / 3000) ** 0.5
    assert (drawn.sum(1) == 0).any()


def test_certain_clients_are_full_participation():
    world = make_world()
    states = [play(FedAvg(selection=selection), cohort=len(world.sizes)) for selection in (Poisson(), Full())]
    assert gap(*states) == 0


@pytest.mark.parametrize(
    "algorithm", [FedAvg(selection=Poisson()), Scaffold(selection=Poisson())], ids=["avg", "scaffold"]
)
def test_mechanisms_agree_and_it_resumes(algorithm):
    """Also over rounds without clients, of which the first four have one."""
    assert 0 in [len(done.ids) for done in rounds(algorithm, context(1), 4)]
    assert_mechanisms_agree(algorithm, count=4, cohort=1)
    assert gap(*(play(algorithm, workers=count) for count in (1, 2))) < 1e-12
    assert_resumes(algorithm, count=4, cohort=1)


def test_fedgen_s_generator_begins_with_the_first_clients():
    """However late they come: nobody receives a generator that has learned nothing."""
    algorithm = FedGen(task_batch=8, server_steps=2, server_batch=8, hidden=8, noise=4, selection=Poisson())
    for seed in range(20):
        done = rounds(algorithm, context(1, seed), 4)
        taking_part = [each for each in done if len(each.ids)]
        if len(done[0].ids) or len(taking_part) < 2:
            continue
        size = sum(leaf.numel() * 8 for leaf in context().model.params().values())
        first, second = taking_part[:2]
        assert first.bytes_down == len(first.ids) * size < second.bytes_down / len(second.ids) * len(first.ids)
        return
    raise AssertionError("no seed begins with an empty round")


def test_a_chain_of_devices_refuses_it():
    with pytest.raises(
        ConfigError, match=r"selection=poisson: FedCat has a copy for each of clients_per_round devices"
    ):
        FedCat(selection=Poisson(), grouping=False).check(context())
    FedCat(selection=Poisson(), grouping=False, concatenation=False).check(context())
