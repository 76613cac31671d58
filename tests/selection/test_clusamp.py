"""CluSamp: the sampling by hand, unbiased over many rounds, the neutral setting, bytes, mechanisms, resume."""

import math
from dataclasses import dataclass

import numpy as np
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
from fedexp.algorithms.fedper import FedPer
from fedexp.engine import Local, client_rows
from fedexp.errors import ConfigError
from fedexp.selection.clusamp import CluSamp

SIZES = torch.tensor([10, 20, 30, 10, 20, 10])


def context(sizes=SIZES, cohort=2):
    world = make_world(list(map(int, sizes)))
    return make_context(make_model("linear", world), world, LOCAL, cohort)


def block_distances(groups, n):
    """0 within a group, 1 between groups."""
    distances = np.ones((n, n))
    for group in groups:
        distances[np.ix_(group, group)] = 0
    return distances


def memory(groups, n):
    return {"distances": torch.from_numpy(block_distances(groups, n))}


def stored(clients, rows):
    """A store of so many clients, of which the keys of `rows` have these updates."""
    first = {name: torch.zeros_like(leaf) for name, leaf in next(iter(rows.values())).items()}
    store = client_rows.new(first, clients)
    for client, row in rows.items():
        store = client_rows.put(store, torch.tensor([client]), {name: leaf[None] for name, leaf in row.items()})
    return store


def test_distances_by_hand():
    """Of client 0 from all: itself, at right angles, one never drawn, opposite, cosine .6, one that did not move."""
    rows = {4: [5.0, 0.0], 0: [3.0, 4.0], 1: [4.0, -3.0], 3: [-6.0, -8.0], 5: [0.0, 0.0]}
    store, first = stored(6, {client: {"w": torch.tensor(row)} for client, row in rows.items()}), torch.tensor([0])
    angle = CluSamp().distances(first, store)[0].tolist()
    assert angle == pytest.approx([0, math.pi / 2, 0, math.pi, math.acos(0.6), 0], abs=1e-15)
    assert CluSamp(distance="l1").distances(first, store)[0].tolist() == [0, 8, 7, 21, 6, 7]
    assert CluSamp(distance="l2").distances(first, store)[0].tolist() == [0, 50, 25, 225, 20, 25]
    near = stored(2, {0: {"w": torch.tensor([1e-160, 0.5])}, 1: {"w": torch.tensor([1e-160, 0.0])}})
    assert CluSamp(distance="l2").distances(first, near)[0].tolist() == [0, 0.25]


@pytest.mark.parametrize("distance", ["arccos", "l1", "l2"])
def test_distances_of_single_precision_updates_are_in_double(distance):
    """As NumPy has them in double precision, over more entries than are taken at a time; 0 from itself to the bit."""
    draw = torch.Generator().manual_seed(0)
    updates = {"v": torch.randn(5, 40, 2000, generator=draw), "w": torch.randn(5, 7, generator=draw)}
    updates["v"] += 3 * updates["v"][0]  # acute angles, as updates have
    ids = torch.tensor([3, 1, 3])
    store = stored(5, {client: {name: leaf[client] for name, leaf in updates.items()} for client in range(5)})
    found = CluSamp(distance=distance).distances(ids, store)
    rows = np.concatenate([updates["v"].flatten(1).double(), updates["w"].double()], 1)
    between = {
        "arccos": lambda a, b: math.acos(a @ b / math.sqrt((a @ a) * (b @ b))),
        "l1": lambda a, b: np.abs(a - b).sum(),
        "l2": lambda a, b: ((a - b) ** 2).sum(),
    }[distance]
    expected = [[0.0 if i == j else between(rows[i], rows[j]) for j in range(5)] for i in ids.tolist()]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=0)
    assert found.dtype == torch.float64


def test_groups_hold_at_most_a_kth_of_the_examples():
    """n = 100, K = 2: {0, 1} and {3, 4, 5} fit into 50; {0, 1, 2} would hold 60."""
    groups = CluSamp().cluster(block_distances([[0, 1, 2], [3, 4, 5]], 6), context())
    assert all(int(SIZES[group].sum()) <= 50 for group in groups)
    assert {3, 4, 5} in [set(group.tolist()) for group in groups]
    masses = [int(SIZES[group].sum()) for group in groups]
    assert masses == sorted(masses) and sum(masses) == 100


def test_a_single_client_is_a_group():
    assert [group.tolist() for group in CluSamp().cluster(np.zeros((1, 1)), context([7], 1))] == [[0]]


def test_distributions_by_hand():
    """K = 2 of n = 100: {2} (30) and {3, 4, 5} (40) found the two; {0, 1} fills 40 of the first, 20 of the second."""
    groups = [torch.tensor([1]), torch.tensor([0]), torch.tensor([2]), torch.tensor([3, 4, 5])]
    shares = CluSamp().distributions(groups, context(), torch.Generator().manual_seed(0))
    assert shares.tolist() == [[0, 40, 60, 0, 0, 0], [20, 0, 0, 20, 40, 20]]


def test_a_client_may_be_split_over_two_distributions():
    groups = [torch.tensor([0]), torch.tensor([1]), torch.tensor([2])]
    shares = CluSamp().distributions(groups, context([3, 4, 5]), torch.Generator().manual_seed(0))
    assert shares.tolist() == [[4, 8, 0], [2, 0, 10]]


@pytest.mark.parametrize("k", [2, 3])
def test_every_client_is_expected_as_often_as_its_examples_say(k):
    """Exactly in the distributions; within four deviations in 1,500 drawn cohorts."""
    known, ctx, gen = memory([[0, 4], [1, 2], [3, 5]], 6), context(cohort=k), torch.Generator().manual_seed(1)
    shares = CluSamp().distributions(CluSamp().cluster(known["distances"].numpy(), ctx), ctx, gen)
    assert shares.sum(0).tolist() == (k * SIZES).tolist() and shares.sum(1).tolist() == [100] * k
    count = 1500
    drawn = torch.stack([CluSamp().select(known, ctx, gen) for _ in range(count)])
    assert drawn.shape == (count, k)
    share = torch.bincount(drawn.flatten(), minlength=6) / drawn.numel()
    expected = SIZES / 100
    assert ((share - expected).abs() < 4 * (expected * (1 - expected) / drawn.numel()).sqrt()).all()


def test_similar_clients_are_not_drawn_together():
    """Two clusters of half the examples each: every cohort of two has one of each, unlike uniform cohorts."""
    known, ctx, gen = memory([[0, 1, 2], [3, 4, 5]], 6), context([10] * 6), torch.Generator().manual_seed(0)
    for _ in range(50):
        assert sorted((CluSamp().select(known, ctx, gen) // 3).tolist()) == [0, 1]


@dataclass(frozen=True)
class Twice(CluSamp):
    """Client 0 twice and client 1."""

    def select(self, memory, ctx, gen):
        return torch.tensor([0, 1, 0])


def test_a_client_drawn_twice_counts_twice():
    world = make_world([8, 12, 8, 12])
    model = make_model("cnn", world)
    ends = {}
    for merge, share in (("equal", 2 / 3), ("examples", 16 / 28)):
        ctx = make_context(model, world, Local(epochs=1, batch_size=8, lr=0.1))
        (only,) = rounds(FedAvg(selection=Twice(merge=merge)), ctx, 1)
        first, second, again = only.models["head.weight"]
        assert torch.equal(first, again)
        ends[merge] = only.after["params"]["head.weight"]
        torch.testing.assert_close(ends[merge], share * first + (1 - share) * second)
    assert not torch.allclose(*ends.values())


def test_all_clients_of_equal_size_are_fedavg():
    ends = []
    for selection in ({"selection": CluSamp()}, {}):
        world = make_world([16] * 4)
        ctx = make_context(make_model("norm", world), world, Local(epochs=1, batch_size=8, lr=0.1), cohort=4)
        ends.append(rounds(FedAvg(**selection), ctx, 3)[-1].after)
    assert gap(*ends) < 1e-13


def test_last_updates_and_their_distances_are_kept():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL)
    last, kept = {}, None
    for done in rounds(FedAvg(selection=CluSamp()), ctx, 4):
        for row, client in enumerate(done.ids.tolist()):
            last[client] = torch.cat([done.uploads["update"][name][row].flatten() for name in ctx.weights])
        kept = done.after["selection"]
    assert 3 <= len(last) <= 6
    everyone = torch.arange(6)
    updates = client_rows.take(kept["updates"], everyone)
    updates = torch.cat([updates[name].flatten(1) for name in ctx.weights], 1)
    for client in range(6):
        assert torch.equal(updates[client], last.get(client, torch.zeros_like(updates[client])))
    drawn = client_rows.held(kept["updates"], everyone)
    assert set(drawn.nonzero().squeeze(1).tolist()) == set(last)
    unit = updates / updates.norm(dim=1, keepdim=True).clamp_min(1e-300)
    expected = (torch.acos((unit @ unit.T).clamp(-1, 1)) * (drawn[:, None] & drawn)).fill_diagonal_(0)
    torch.testing.assert_close(kept["distances"], expected, rtol=0, atol=1e-12)
    assert kept["distances"].diagonal().tolist() == [0] * 6


def test_similarity_is_that_of_the_trained_entries_that_cross():
    """Running statistics are no part of it; nor is a head that stays with the clients."""
    algorithm = FedPer(selection=CluSamp())
    kept = play(algorithm, "norm")["selection"]["updates"]["first"]
    assert set(kept) == {"encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias"}


def test_bytes_are_fedavgs():
    world = make_world([10] * 6, dtype=torch.float32)
    model = make_model("cnn", world, torch.float32)
    (only,) = rounds(FedAvg(selection=CluSamp()), make_context(model, world, LOCAL, precision="float32"), 1)
    size = 4 * sum(value.numel() for value in model.params().values())
    assert (only.bytes_up, only.bytes_down) == (3 * size, 3 * size)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(FedAvg(selection=CluSamp()), kind, count=5)


def test_two_workers_are_one():
    selection = CluSamp(distance="l2", merge="examples")
    assert gap(*(play(FedAvg(selection=selection), "norm", workers=count, count=4) for count in (1, 2))) < 1e-12


def test_resumes():
    assert_resumes(FedAvg(selection=CluSamp()), "norm")


def test_settings_are_checked():
    world = make_world([40, 30, 30])
    with pytest.raises(ConfigError, match=r"clients_per_round=3: .* use at most 2"):
        FedAvg(selection=CluSamp()).check(make_context(make_model("linear", world), world))
    world = make_world([2] * 2001)
    with pytest.raises(ConfigError, match=r"clients=2001: .* N\^3 .* use at most 2000, or selection=uniform"):
        FedAvg(selection=CluSamp()).check(make_context(make_model("linear", world), world))
    for name in ("distance", "merge"):
        with pytest.raises(ConfigError, match=rf"selection\.{name}=cosine"):
            CluSamp(**{name: "cosine"})
