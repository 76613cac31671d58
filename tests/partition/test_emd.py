"""The partition at a chosen EMD: the published values exactly, each example once, many distributions."""

import numpy as np
import pytest
import torch
from worlds import make_dataset

from fedexp.errors import ConfigError
from fedexp.measure.skew import emd as distance
from fedexp.partition.emd import emd

PUBLISHED = {0: 500, 0.36: 1400, 0.72: 2300, 1.08: 3200, 1.44: 4100, 1.62: 4550, 1.764: 4910, 1.8: 5000}
MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # its classes' sizes


@pytest.fixture(scope="module")
def mnist():
    labels = np.repeat(np.arange(10), MNIST)
    return make_dataset(np.random.default_rng(0).permutation(labels))


def counts_of(dataset, parts):
    return torch.stack([torch.bincount(dataset.train_y[part], minlength=dataset.classes) for part in parts])


@pytest.mark.parametrize("shape", ["random", "peak"])
@pytest.mark.parametrize("target", PUBLISHED)
def test_published_values_are_hit_exactly_and_each_example_used_once(mnist, target, shape):
    for distribution in range(5):
        parts = emd(mnist, 10, 1, target, distribution, shape)
        ids = torch.cat(parts)
        assert [len(part) for part in parts] == [5000] * 10
        assert len(ids.unique()) == 50_000
        counts = counts_of(mnist, parts)
        assert counts.sum(0).tolist() == [5000] * 10
        assert torch.allclose(distance(counts), torch.full((10,), float(target), dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("target", PUBLISHED)
def test_a_peak_has_the_counts_of_the_construction(mnist, target):
    high = PUBLISHED[target]
    low = (5000 - high) // 9
    counts = counts_of(mnist, emd(mnist, 10, 0, target, shape="peak"))
    assert all(sorted(row.tolist()) == [low] * 9 + [high] for row in counts)


@pytest.mark.parametrize("shape", ["random", "peak"])
@pytest.mark.parametrize("excess", [1, 5, 13])
def test_what_is_above_uniform_is_below_it_elsewhere(shape, excess):
    """Four classes, 24 examples a client, of which so many are above six of a class; others share the lack as evenly
    as they can (peak), or at random."""
    dataset = make_dataset(np.repeat(np.arange(4), 24))
    for seed in range(10):
        row = counts_of(dataset, emd(dataset, 4, seed, excess / 12, shape=shape))[0] - 6
        assert row.clamp_min(0).sum() == excess
        assert row.sum() == 0
        if shape == "peak":
            assert row.max() == excess
            assert row.sort().values[:3].max() - row.min() <= 1


def test_clients_hold_the_shifts_of_one_distribution(mnist):
    counts = counts_of(mnist, emd(mnist, 20, 3, 1.08)).tolist()
    for client, row in enumerate(counts):
        assert row == np.roll(counts[0], client).tolist()
    assert sum(counts[0]) == 2500  # 20 clients: two for each shift, half the examples each


def test_many_classes_above_uniform_are_drawn_where_possible(mnist):
    def above(target):
        drawn = (counts_of(mnist, emd(mnist, 10, 0, target, number))[0] for number in range(60))
        return {int((row > 500).sum()) for row in drawn}

    assert len(above(0.36)) > 4
    assert above(1.44) == {1, 2}  # s classes need EMD <= 2 (1 - s / 10)
    assert above(1.62) == {1}


def test_seed_and_number_each_choose_the_distribution(mnist):
    one, same, other, seeded = (emd(mnist, 10, *rest) for rest in ((0, 1.44), (0, 1.44), (0, 1.44, 1), (1, 1.44)))
    assert all(torch.equal(a, b) for a, b in zip(one, same))
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(one[0], seeded[0])


def test_other_targets_take_the_nearest_and_say_so(capsys):
    dataset = make_dataset(np.repeat(np.arange(4), 13))
    counts = counts_of(dataset, emd(dataset, 4, 0, 1.0))  # 12 examples a client: multiples of 2 / 12
    assert torch.allclose(distance(counts), torch.ones(4).double())
    assert capsys.readouterr().out == ""
    counts = counts_of(dataset, emd(dataset, 4, 0, 0.61))
    assert torch.allclose(distance(counts), torch.full((4,), 8 / 12).double())
    assert "reach EMD 0.666667, not 0.61" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("clients", "wanted", "key"),
    [
        (10, {"target": 1.81}, "partition.target"),
        (10, {"target": -0.1}, "partition.target"),
        (12, {"target": 1.0}, "clients"),
        (10, {"target": 1.0, "shape": "flat"}, "partition.shape"),
        (10, {"target": 1.0, "per_client": 5430}, "partition.per_client"),
        (10, {"target": 1.0, "per_client": 99}, "partition.per_client"),
        (60000, {"target": 1.0}, "clients"),
    ],
)
def test_what_cannot_be_made_is_an_error(mnist, clients, wanted, key):
    with pytest.raises(ConfigError) as error:
        emd(mnist, clients, 0, **wanted)
    assert error.value.key == key


def test_a_data_set_of_one_class_is_refused():
    with pytest.raises(ConfigError, match=r"^partition=emd: needs several classes, and made has one"):
        emd(make_dataset(np.zeros(20, dtype=int)), 2, 0, target=0)
