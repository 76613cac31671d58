"""Cluster skew: counts of the documented constructions, and clear errors where they are impossible."""

import numpy as np
import pytest
import torch
from worlds import make_dataset

from fedexp.errors import ConfigError
from fedexp.partition.cluster import multi_cluster, single_cluster

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MC = {"ratios": [3, 3, 2, 1, 1], "mean": 290, "deviation": 86, "smallest": 86, "largest": 498}


def counts(dataset, parts):
    """[clients, classes]"""
    return np.stack([np.bincount(dataset.train_y[part].numpy(), minlength=dataset.classes) for part in parts])


def like(sizes):
    return make_dataset(np.repeat(np.arange(len(sizes)), sizes))


def assert_disjoint(parts):
    every = torch.cat(parts)
    assert len(every.unique()) == len(every)


def test_multi_cluster_has_the_paper_s_clusters():
    dataset = like(MNIST)
    parts = multi_cluster(dataset, 100, 0, **MC)
    table = counts(dataset, parts)
    assert_disjoint(parts)
    starts = [0, 30, 60, 80, 90, 100]
    for cluster in range(5):
        rows = table[starts[cluster] : starts[cluster + 1]]
        own = rows[:, 2 * cluster : 2 * cluster + 2]
        assert (own > 0).all() and own.sum() == rows.sum()
        assert (own[:, 0] == own[:, 1]).all()
    sizes = table.sum(1)
    assert sizes.min() >= 86 and sizes.max() <= 498
    assert abs(sizes.mean() - 290) < 3 * 86 / 10 and 60 < sizes.std() < 110


@pytest.mark.parametrize(
    "clients, ratios, members",
    [(10, [3, 3, 2, 1, 1], [3, 3, 2, 1, 1]), (7, [1, 1, 1], [3, 2, 2]), (9, [2, 1], [6, 3]), (4, [1], [4])],
)
def test_any_number_of_clusters_clients_and_classes(clients, ratios, members):
    dataset = like([80] * 7)
    parts = multi_cluster(dataset, clients, 3, ratios, mean=20, deviation=4)
    kinds = [tuple(np.flatnonzero(row)) for row in counts(dataset, parts)]
    blocks = [tuple(block) for block in np.array_split(np.arange(7), len(ratios))]
    assert [kinds.count(block) for block in blocks] == members


def test_sizes_are_drawn_again_until_they_fit():
    """Half of all draws exceed the classes: every seed must still succeed."""
    dataset = like([100] * 2)
    for seed in range(20):
        parts = multi_cluster(dataset, 10, seed, [1], mean=20, deviation=5)
        assert_disjoint(parts)


def test_impossible_sizes_are_an_error_that_names_the_possible_ones():
    with pytest.raises(ConfigError, match=r"partition.mean=290: class 0 has 500 .* mean of at most 32"):
        multi_cluster(like([500] * 10), 100, 0, **{**MC, "deviation": 0})
    with pytest.raises(ConfigError, match=r"mean of at most 32, partition.smallest too"):
        multi_cluster(like([500] * 10), 100, 0, **{**MC, "deviation": 0})
    possible = {**MC, "mean": 32, "smallest": 32}
    with pytest.raises(ConfigError, match=r"use fewer clients or a partition.deviation below 86"):
        multi_cluster(like([500] * 10), 100, 0, **possible)
    assert len(multi_cluster(like([500] * 10), 100, 0, **{**possible, "deviation": 0})) == 100, "as the errors say"
    with pytest.raises(ConfigError, match=r"need \d+; use fewer clients$"):
        multi_cluster(like([9000] * 9 + [3]), 100, 0, **MC)
    with pytest.raises(ConfigError, match=r"clients=4"):
        multi_cluster(like(MNIST), 4, 0, **MC)
    with pytest.raises(
        ConfigError, match=r"partition.ratios=\[1e\+308, 1e\+308\]: must all be above 0, and their sum finite"
    ):
        multi_cluster(like(MNIST), 100, 0, **{**MC, "ratios": [1e308, 1e308]})
    with pytest.raises(ConfigError, match=r"partition.ratios"):
        multi_cluster(like([500] * 3), 100, 0, **MC)


def test_balanced_single_cluster():
    dataset = like(MNIST)
    parts = single_cluster(dataset, 100, 1, share=0.6, mean=192)
    table = counts(dataset, parts)
    assert_disjoint(parts)
    assert (table[:60, :2] == 96).all() and (table[:60, 2:] == 0).all()
    assert (table[60:, :2] == 0).all() and (table.sum(1) == 192).all()
    assert ((table[60:] > 0).sum(1) == 2).all()
    assert len({tuple(np.flatnonzero(row)) for row in table[60:]}) > 10


def test_every_example_of_a_class_may_be_needed():
    parts = multi_cluster(like([50, 50]), 10, 0, [1], mean=10, deviation=0)
    assert len(torch.cat(parts).unique()) == 100


def test_a_cluster_of_few_classes_holds_one_of_them():
    dataset = like([100] * 4)
    assert ((counts(dataset, single_cluster(dataset, 8, 0, share=0.5, mean=20)) > 0).sum(1) == 1).all()


def test_unbalanced_single_cluster():
    dataset = like([500] * 100)
    parts = single_cluster(dataset, 100, 1, share=0.6, mean=160, deviation=14)
    table = counts(dataset, parts)
    assert_disjoint(parts)
    assert (table[:60, :20] > 0).all() and table[:60, 20:].sum() == 0
    assert ((table > 0).sum(1) == 20).all()
    assert 100 < table.sum(1).min() < table.sum(1).max() < 220


def test_single_cluster_that_classes_cannot_fill():
    with pytest.raises(ConfigError, match=r"mean of at most 166"):
        single_cluster(like([5000] * 10), 100, 0, share=0.6, mean=290)


@pytest.mark.parametrize(("smallest", "largest"), [(86, 498), (1, 45), (20, 30)])
def test_bounds_hold_where_sizes_are_rounded_to_whole_examples_of_each_class(smallest, largest):
    """With 20 classes a client only multiples of 20 are possible."""
    dataset = like([500] * 100)
    parts = multi_cluster(
        dataset, 20, 0, **{**MC, "mean": 150, "deviation": 300, "smallest": smallest, "largest": largest}
    )
    sizes = {len(part) for part in parts}
    assert smallest <= min(sizes) and max(sizes) <= largest and all(size % 20 == 0 for size in sizes)


def test_bounds_between_which_no_size_lies_are_refused():
    with pytest.raises(
        ConfigError, match=r"partition.largest=99: no number of examples from smallest=86 on holds 20 la"
    ):
        multi_cluster(like([500] * 100), 20, 0, **{**MC, "largest": 99})
