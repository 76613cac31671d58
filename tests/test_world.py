"""The ragged index and preparing batches."""

import hashlib
import struct
from dataclasses import replace

import pytest
import torch
from composing import composed
from program import SMALL
from worlds import (
    SIZES,
    assert_mechanisms_agree,
    assert_resumes,
    make_context,
    make_dataset,
    make_model,
    make_world,
    rounds,
)

from fedexp.algorithms.fedavg import FedAvg
from fedexp.building.world import build_dataset, build_world, hold_out, noise_by_client
from fedexp.config.checks import check
from fedexp.data import Dataset, Transform
from fedexp.errors import ConfigError
from fedexp.world import Noise, World


def test_label_counts_and_clients():
    world = make_world()
    assert world.clients == 6
    assert world.label_counts.sum(1).tolist() == SIZES
    own = world.y[world.of(2)]
    assert world.label_counts[2].tolist() == torch.bincount(own, minlength=4).tolist()
    assert torch.equal(torch.cat([world.of(client) for client in range(6)]), world.rows)


def test_prepare_scales_bytes_to_unit_interval():
    world = make_world()
    rows = torch.tensor([[0, 1], [2, 3]])
    x = world.prepare(rows)
    assert x.shape == (2, 2, 1, 8, 8)
    torch.testing.assert_close(x[1, 0], world.x[2].double() / 255)


@pytest.mark.parametrize("transform", [Transform([0.3], [0.5]), Transform(crop=8, pad=1, flip=True), Transform()])
def test_images_are_prepared_alike_in_either_memory_format(transform):
    world = make_world(shape=(3, 8, 8), transform=transform)
    other = replace(world, x=world.x.contiguous(memory_format=torch.channels_last))
    assert other.x.stride() != world.x.stride()
    rows, keys = torch.tensor([[5, 0, 5], [2, 1, 3]]), torch.tensor([7, 8])
    assert torch.equal(other.prepare(rows, keys), world.prepare(rows, keys))
    assert torch.equal(other.prepare(rows[0]), world.prepare(rows[0]))


def test_partition_hash_names_the_split_and_its_labels():
    """A hash of sizes, rows and labels, 8 bytes a number; of what the examples look like nothing is in it."""
    x = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    y, rows, sizes = torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1]), torch.tensor([2, 1])
    world = World(x, y, x, y, rows, sizes, 2, Transform())
    numbers = struct.pack("<8q", 2, 1, 2, 0, 1, 0, 1, 1)
    assert world.partition_hash() == hashlib.blake2b(numbers, digest_size=8).hexdigest()
    assert replace(world, x=x + 1, dtype=torch.float64).partition_hash() == world.partition_hash()
    others = [{"y": 1 - y}, {"rows": rows.flip(0)}, {"sizes": sizes.flip(0)}]
    assert len({replace(world, **other).partition_hash() for other in [{}, *others]}) == 4


PARTS = [torch.arange(0, 10), torch.arange(10, 12), torch.arange(12, 60)]


def test_a_share_of_each_clients_examples_is_held_out():
    """A fifth of 10, 2 and 48: 2, at least 1, and 10; each example in one of the two, in the partition's order."""
    train, held = hold_out(PARTS, 0.2, seed=3)
    assert [len(part) for part in held] == [2, 1, 10]
    for whole, kept, out in zip(PARTS, train, held):
        assert sorted([*kept.tolist(), *out.tolist()]) == whole.tolist()
        assert kept.tolist() == sorted(kept.tolist())
    again, other = hold_out(PARTS, 0.2, seed=3)[1], hold_out(PARTS, 0.2, seed=4)[1]
    assert [part.tolist() for part in again] == [part.tolist() for part in held]
    assert held[2].tolist() != other[2].tolist()


def test_what_is_held_out_is_a_clients_own_matter():
    """It does not depend on who else there is; and one example is left, however large the share."""
    _, held = hold_out(PARTS[:1], 0.2, seed=3)
    assert held[0].tolist() == hold_out(PARTS, 0.2, seed=3)[1][0].tolist()
    assert [len(part) for part in hold_out(PARTS, 0.99, seed=3)[0]] == [1, 1, 1]


def test_nothing_is_held_out_unless_asked_for():
    train, held = hold_out(PARTS, 0.0, seed=3)
    assert [part.tolist() for part in train] == [part.tolist() for part in PARTS]
    assert [len(part) for part in held] == [0, 0, 0]


def test_a_client_of_one_example_cannot_hold_one_out():
    with pytest.raises(ConfigError, match=r"partition\.holdout=0\.2: client 1 has one example"):
        hold_out([torch.arange(5), torch.tensor([7])], 0.2, seed=0)


def test_held_out_examples_by_client():
    """They are no part of the clients' sizes and labels, nor of the name of the split."""
    world = make_world([4, 6])
    held, sizes = torch.tensor([3, 8, 5]), torch.tensor([1, 2])
    more = replace(world, held=held, held_sizes=sizes)
    assert [more.held_out(client).tolist() for client in (0, 1)] == [[3], [8, 5]]
    assert torch.equal(more.label_counts, world.label_counts)
    assert more.partition_hash() == world.partition_hash()


def noisy(world, noise=0.5):
    """The world with feature skew: no noise for client 0, most for client 5."""
    dataset = Dataset("made", world.x, world.y, world.x[:1], world.y[:1], world.classes, world.transform)
    parts = [world.of(client) for client in range(world.clients)]
    return replace(world, noise=noise_by_client(dataset, parts, noise, seed=0))


@pytest.mark.parametrize("batch", [None, torch.tensor(77)], ids=["as they are", "a batch"])
def test_noise_grows_from_client_to_client(batch):
    """NIID-Bench's levels: client k of N has a deviation of noise k / (N - 1)."""
    world = make_world([200] * 6, shape=(1, 8, 8))
    plain, skewed = world, noisy(world)
    for client in range(6):
        rows = world.of(client)
        added = skewed.prepare(rows, batch) - plain.prepare(rows, batch)
        expected = 0.5 * client / 5
        assert abs(float(added.mean())) <= 4 * expected / added.numel() ** 0.5
        assert float(added.std()) == pytest.approx(expected, rel=0.03, abs=1e-12)
        if client:
            assert float((added.abs() < expected).double().mean()) == pytest.approx(0.6827, abs=0.02)


def test_a_batch_has_noise_of_its_own_and_the_test_set_has_none():
    world = noisy(make_world())
    rows = world.of(5)
    assert torch.equal(world.prepare(rows), world.prepare(rows))
    first, second = world.prepare(rows, torch.tensor(1)), world.prepare(rows, torch.tensor(2))
    assert (first != second).all() and torch.equal(first, world.prepare(rows, torch.tensor(1)))
    plain = make_world().prepare(rows)
    pair = torch.stack([(each - plain).flatten() for each in (first, second)])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.1
    assert torch.equal(world.prepare_test(slice(0, 9)), make_world().prepare_test(slice(0, 9)))


def test_training_with_noise_is_the_same_alone_and_as_a_stack(monkeypatch):
    import worlds

    made = worlds.make_world
    monkeypatch.setattr(worlds, "make_world", lambda *args, **more: noisy(made(*args, **more)))
    assert_mechanisms_agree(FedAvg(), "norm", transform=Transform(flip=True, crop=8, pad=1))
    assert_resumes(FedAvg(), "norm", count=2)


def test_no_noise_leaves_everything_as_it_was():
    """A deviation of 0 adds nothing, and without the key there is none at all."""
    states = []
    for world in (make_world(), noisy(make_world(), 0.0)):
        states.append(rounds(FedAvg(), make_context(make_model("cnn", world), world), 2)[-1].after["params"])
    assert all(torch.equal(leaf, states[1][name]) for name, leaf in states[0].items())
    plain, given = (composed(*SMALL, *more) for more in ([], ["partition.noise=0.1"]))
    dataset = build_dataset(plain)
    assert build_world(plain, dataset).noise is None
    deviation = build_world(given, dataset).noise.deviation
    assert float(deviation.max()) == pytest.approx(0.1) and float(deviation.min()) == 0


@pytest.mark.parametrize("partition", ["dir0.1", "shards2", "classes2", "iid"])
def test_runs_of_several_seeds_can_share_a_partition(partition):
    words = [f"partition={partition}", "partition.holdout=0.2", "partition.noise=1", "partition.quantity_skew=50"]

    def world(*more):
        config = composed(*words, *more)
        return build_world(config, build_dataset(config))

    def equal(one, other):
        same = torch.equal(one.rows, other.rows) and torch.equal(one.sizes, other.sizes)
        return same and one.noise.key == other.noise.key

    first = world("seed=3")
    assert equal(world("seed=7", "partition.seed=3"), first)
    assert equal(world("seed=3", "partition.seed=3"), first)
    assert not equal(world("seed=3", "partition.seed=7"), first)
    assert equal(world("seed=3", "partition.seed=7"), world("seed=7"))


@pytest.mark.parametrize("value", ["1.5", "true", "word"])
def test_a_partition_s_seed_is_a_whole_number(value):
    with pytest.raises(ConfigError, match=rf"^partition\.seed={value}: must be a whole number, or null"):
        check(composed(f"partition.seed={value}"))


def test_noise_that_has_no_owner_is_refused():
    dataset = make_dataset([0, 1, 2, 0])
    with pytest.raises(ConfigError, match=r"partition\.noise=0\.1: this partition shares examples .*; use another"):
        noise_by_client(dataset, [torch.tensor([0, 1]), torch.tensor([1, 2])], 0.1, 0)
    with pytest.raises(ConfigError, match=r"partition\.noise=0\.1: grows from client to client"):
        noise_by_client(dataset, [torch.tensor([0, 1])], 0.1, 0)
    assert noise_by_client(dataset, [torch.tensor([3]), torch.tensor([0, 1])], 0.1, 0).deviation.tolist() == [
        pytest.approx(0.1), pytest.approx(0.1), 0.0, 0.0,
    ]  # fmt: skip
    assert isinstance(noisy(make_world()).noise, Noise)
