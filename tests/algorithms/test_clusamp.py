"""CluSamp: the sampling by hand, unbiased over many rounds, the neutral setting, bytes, mechanisms, resume."""

import math

import numpy as np
import pytest
import torch
from worlds import assert_mechanisms_agree, assert_resumes, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.clusamp import CluSamp
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure.communication import traffic
from fedexp.randomness import generator

LOCAL = Local(epochs=1, batch_size=8, lr=0.1)
SIZES = torch.tensor([10, 20, 30, 10, 20, 10])


def block_distances(groups, n):
    """0 within a group, 1 between groups."""
    distances = np.ones((n, n))
    for group in groups:
        distances[np.ix_(group, group)] = 0
    return distances


def test_distances_by_hand():
    some = {"w": torch.tensor([[3.0, 4.0]])}
    every = {"w": torch.tensor([[3.0, 4.0], [4.0, -3.0], [0.0, 0.0], [-6.0, -8.0], [5.0, 0.0]])}
    angle = CluSamp(2, LOCAL).distances(some, every)[0].tolist()
    assert angle == pytest.approx([0, math.pi / 2, 0, math.pi, math.acos(0.6)], abs=1e-6)
    assert CluSamp(2, LOCAL, distance="l1").distances(some, every)[0].tolist() == pytest.approx([0, 8, 7, 21, 6])
    assert CluSamp(2, LOCAL, distance="l2").distances(some, every)[0].tolist() == pytest.approx([0, 50, 25, 225, 20])


def test_groups_hold_at_most_a_kth_of_the_examples():
    """n = 100, K = 2: {0, 1} and {3, 4, 5} fit into 50; {0, 1, 2} would hold 60."""
    distances = block_distances([[0, 1, 2], [3, 4, 5]], 6)
    groups = CluSamp(2, LOCAL).cluster(distances, SIZES.numpy())
    assert all(int(SIZES[group].sum()) <= 50 for group in groups)
    assert {3, 4, 5} in [set(group.tolist()) for group in groups]
    masses = [int(SIZES[group].sum()) for group in groups]
    assert masses == sorted(masses) and sum(masses) == 100


def test_a_single_client_is_a_group():
    assert [group.tolist() for group in CluSamp(1, LOCAL).cluster(np.zeros((1, 1)), np.array([7]))] == [[0]]


def test_distributions_by_hand():
    """K = 2 of n = 100: {2} (30) and {3, 4, 5} (40) found the two; {0, 1} fills 40 of the first, 20 of the second."""
    groups = [torch.tensor([1]), torch.tensor([0]), torch.tensor([2]), torch.tensor([3, 4, 5])]
    shares = CluSamp(2, LOCAL).distributions(groups, SIZES, torch.Generator().manual_seed(0))
    assert shares.tolist() == [[0, 40, 60, 0, 0, 0], [20, 0, 0, 20, 40, 20]]


def test_a_client_may_be_split_over_two_distributions():
    groups = [torch.tensor([0]), torch.tensor([1]), torch.tensor([2])]
    shares = CluSamp(2, LOCAL).distributions(groups, torch.tensor([3, 4, 5]), torch.Generator().manual_seed(0))
    assert shares.tolist() == [[4, 8, 0], [2, 0, 10]]


@pytest.mark.parametrize("k", [2, 3])
def test_every_client_is_expected_as_often_as_its_examples_say(k):
    """Exactly in the distributions; within four deviations in 1,500 drawn cohorts."""
    world = make_world(SIZES.tolist())
    state = {"distances": torch.from_numpy(block_distances([[0, 4], [1, 2], [3, 5]], 6))}
    algorithm, gen = CluSamp(k, LOCAL), torch.Generator().manual_seed(1)
    groups = algorithm.cluster(state["distances"].numpy(), SIZES.numpy())
    shares = algorithm.distributions(groups, SIZES, gen)
    assert shares.sum(0).tolist() == (k * SIZES).tolist() and shares.sum(1).tolist() == [100] * k
    rounds = 1500
    drawn = torch.stack([algorithm.select(state, world, gen) for _ in range(rounds)])
    assert drawn.shape == (rounds, k)
    share = torch.bincount(drawn.flatten(), minlength=6) / drawn.numel()
    expected = SIZES / 100
    assert ((share - expected).abs() < 4 * (expected * (1 - expected) / drawn.numel()).sqrt()).all()


def test_similar_clients_are_not_drawn_together():
    """Two clusters of half the examples each: every cohort of two has one of each, unlike uniform cohorts."""
    world = make_world([10] * 6)
    state = {"distances": torch.from_numpy(block_distances([[0, 1, 2], [3, 4, 5]], 6))}
    gen = torch.Generator().manual_seed(0)
    for _ in range(50):
        assert sorted((CluSamp(2, LOCAL).select(state, world, gen) // 3).tolist()) == [0, 1]


def test_a_client_drawn_twice_counts_twice():
    ends = {}
    for weights in ("equal", "examples"):
        world = make_world([8, 24])
        model = make_model("cnn", world)
        algorithm, engine = CluSamp(3, LOCAL, weights=weights), make_engine(model, world, LOCAL)
        state = algorithm.init(world, model, model.params())
        ids = torch.tensor([0, 1, 0])
        sent = algorithm.send(state, ids)
        trained = engine.train(algorithm, state, ids, sent)
        merged = algorithm.merge(state, ids, sent, trained)["params"]["head.weight"]
        first, second = trained.params["head.weight"][:2]
        share = {"equal": 2 / 3, "examples": 16 / 40}[weights]
        torch.testing.assert_close(merged, share * first + (1 - share) * second)
        ends[weights] = merged
    assert not torch.allclose(ends["equal"], ends["examples"])


def test_all_clients_of_equal_size_are_fedavg():
    ends = []
    for make in (lambda: CluSamp(4, LOCAL), lambda: FedAvg(4, LOCAL)):
        world = make_world([16] * 4)
        model = make_model("norm", world)
        engine, state = make_engine(model, world, LOCAL), make().init(world, model, model.params())
        for round in range(3):
            state = make().round(state, world, engine, generator(0, "round", round))
        ends.append(state)
    assert gap(*ends) < 1e-13


def test_updates_and_distances_are_kept():
    state = play(lambda k, local: CluSamp(k, local), count=4)
    updates = torch.cat([leaf.flatten(1) for leaf in state["updates"].values()], 1)
    unit = updates / updates.norm(dim=1, keepdim=True).clamp_min(1e-300)
    drawn = updates.norm(dim=1) > 0
    assert 3 <= drawn.sum() <= 6
    expected = torch.acos((unit @ unit.T).clamp(-1, 1)) * (drawn[:, None] & drawn)
    torch.testing.assert_close(state["distances"], expected, rtol=0, atol=1e-6)


def test_sends_one_model_each_way():
    world = make_world([10] * 6, dtype=torch.float32)
    model = make_model("cnn", world, torch.float32)
    algorithm, engine = CluSamp(3, LOCAL), make_engine(model, world, LOCAL)
    algorithm.round(algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0))
    size = 4 * sum(value.numel() for value in model.params().values())
    assert traffic(engine.drain()) == (3 * size, 3 * size)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(lambda k, local: CluSamp(k, local), kind)


def test_resumes():
    assert_resumes(lambda k, local: CluSamp(k, local), "norm")


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"clients_per_round=3: .* use at most 2"):
        CluSamp(3, LOCAL).check(make_world([40, 30, 30]))
    for change in ({"distance": "cosine"}, {"weights": "sizes"}):
        with pytest.raises(ConfigError, match=f"algorithm.{next(iter(change))}"):
            CluSamp(2, LOCAL, **change)
