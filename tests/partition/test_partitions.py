"""Every partition: exact counts, disjoint, complete, reproducible from the seed; and their errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from worlds import make_dataset

from fedexp.errors import ConfigError
from fedexp.partition.classes import classes
from fedexp.partition.dirichlet import dirichlet
from fedexp.partition.emd import emd
from fedexp.partition.iid import iid
from fedexp.partition.natural import natural
from fedexp.partition.shards import shards

LABELS = torch.arange(10).repeat_interleave(torch.arange(91, 101))  # 955 examples, unequal classes

KINDS = {
    "iid": iid,
    "iid_quantity": lambda d, n, s: iid(d, n, s, quantity_alpha=0.5),
    "shards1": lambda d, n, s: shards(d, n, s, per_client=1),
    "shards2": lambda d, n, s: shards(d, n, s, per_client=2),
    "hsu": lambda d, n, s: dirichlet(d, n, s, alpha=0.1),
    "hsu_quantity": lambda d, n, s: dirichlet(d, n, s, alpha=0.5, quantity_alpha=1.0),
    "niid": lambda d, n, s: dirichlet(d, n, s, alpha=0.5, construction="class_split"),
    "classes2": lambda d, n, s: classes(d, n, s, per_client=2),
    "classes3": lambda d, n, s: classes(d, n, s, per_client=3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_example_has_one_owner_and_seeds_repeat(kind):
    data = make_dataset(LABELS)
    parts = KINDS[kind](data, 20, 3)
    assert len(parts) == 20
    assert min(map(len, parts)) >= 1
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(955))
    assert all(torch.equal(a, b) for a, b in zip(parts, KINDS[kind](data, 20, 3)))
    other = KINDS[kind](data, 20, 4)
    assert not all(torch.equal(a, b) for a, b in zip(parts, other))


def counts(parts, labels=LABELS):
    return torch.stack([torch.bincount(labels[part], minlength=10) for part in parts])


def test_iid_is_even():
    assert {len(part) for part in iid(make_dataset(LABELS), 20, 0)} == {47, 48}


def test_shards_hold_exactly_so_many_classes():
    """Also with unequal classes; Zhao's ten clients: client c holds class c; two shards: halves of two classes."""
    data = make_dataset(LABELS)
    one = counts(shards(data, 10, 0, per_client=1))
    assert torch.equal(one, torch.diag(torch.arange(91, 101)))
    for n in (10, 20, 13):
        two = counts(shards(data, n, 0, per_client=2))
        assert ((two > 0).sum(1) == 2).all()
    ten = counts(shards(data, 10, 0, per_client=2))
    assert ((ten > 0).sum(0) == 2).all()
    assert (ten.sum(0) == torch.arange(91, 101)).all()


def test_hsu_is_balanced_and_follows_its_priors():
    data = make_dataset(torch.arange(10).repeat(2000))
    parts = dirichlet(data, 100, 0, alpha=0.1)
    assert {len(part) for part in parts} == {200}
    shares = counts(parts, data.train_y).double() / 200
    # E[max share] of Dir(0.1 1_10) is about 0.66; of Dir(100 1_10) near 0.1
    assert 0.55 < shares.max(1).values.mean() < 0.8
    flat = counts(dirichlet(data, 100, 0, alpha=100.0), data.train_y).double() / 200
    assert flat.max(1).values.mean() < 0.2


def test_niid_class_split_is_unbalanced_with_a_smallest_size():
    data = make_dataset(torch.arange(10).repeat(500))
    sizes = [len(part) for part in dirichlet(data, 20, 0, alpha=0.5, construction="class_split", min_size=30)]
    assert min(sizes) >= 30
    assert max(sizes) > 2 * min(sizes)


@pytest.mark.parametrize("seed", [0, 7])
def test_a_class_split_s_published_draw_is_that_of_numpy_s_older_generator(seed):
    """Class by class: its examples are shuffled, then its shares are drawn; all again where a client has too few."""
    state, held = np.random.RandomState(seed), np.zeros((20, 10), dtype=int)
    while held.sum(1).min() < 10:
        held[:] = 0
        for label, size in enumerate(range(91, 101)):
            state.shuffle(np.arange(size))
            share = np.where(held.sum(1) < 955 / 20, state.dirichlet([0.3] * 20), 0)
            ends = (np.cumsum(share / share.sum()) * size).astype(int)
            held[:, label] = np.diff([0, *ends[:-1], size])
    made = dirichlet(make_dataset(LABELS), 20, seed, alpha=0.3, construction="class_split", published_draw=True)
    assert counts(made).tolist() == held.tolist()
    own = dirichlet(make_dataset(LABELS), 20, seed, alpha=0.3, construction="class_split")
    assert counts(own).tolist() != held.tolist()


@pytest.mark.filterwarnings("error")
def test_a_published_draw_of_nearly_no_shares_is_drawn_again():
    """numpy's older generator then gives shares that are not numbers; a full client would get whole classes."""
    data = make_dataset(torch.arange(10).repeat(100))
    for seed in range(10):
        parts = dirichlet(data, 3, seed, alpha=0.001, construction="class_split", published_draw=True)
        assert max(len(part) for part in parts) <= 333 + 100


def test_a_client_with_an_even_share_gets_no_more_and_one_example_is_enough():
    """The second example goes to the client that has not had the first, whoever draws the larger share of it."""
    for seed in range(10):
        parts = dirichlet(make_dataset([0, 1]), 2, seed, 0.1, "class_split", min_size=0, tries=1)
        assert sorted(part.tolist() for part in parts) == [[0], [1]]


def test_hsu_passes_over_classes_without_examples_and_takes_any_that_is_left():
    """Of classes 0, 1 and 3, where nearly all clients want a single one, and many want class 2, which is empty."""
    labels = torch.tensor([0, 1, 3]).repeat_interleave(40)
    rest = []
    for seed in range(5):
        parts = dirichlet(make_dataset(labels), 12, seed, alpha=1e-3)
        table = counts(parts, labels)
        assert table.sum(0).tolist() == [40, 40, 0, 40, 0, 0, 0, 0, 0, 0]
        assert table.sum(1).tolist() == [10] * 12
        rest.append(table)
    mixed = torch.cat(rest)
    mixed = mixed[(mixed > 0).sum(1) > 1]
    assert all((mixed[:, label] > 0).any() for label in (0, 1, 3))


def test_classes_follow_the_published_draw():
    """Client i owns class i mod C; seed 1 gives FedConcat's {0, 2} and {1, 9} for the first two clients."""
    data = make_dataset(torch.arange(10).repeat(300))
    held = [set(data.train_y[part].tolist()) for part in classes(data, 40, 1, per_client=2)]
    assert held[:6] == [{0, 2}, {1, 9}, {2, 1}, {3, 4}, {4, 1}, {5, 7}]
    assert all(len(own) == 2 for own in held)
    sizes = counts(classes(data, 40, 1, per_client=2), data.train_y)
    for label in range(10):
        owned = sizes[:, label][sizes[:, label] > 0]
        assert owned.max() - owned.min() <= 1


def test_natural_is_the_sources_own():
    data = make_dataset([0, 1, 0, 1, 1])
    data.__dict__["owners"] = torch.tensor([1, 0, 1, 0, 1])
    assert [part.tolist() for part in natural(data, 2, 0)] == [[1, 3], [0, 2, 4]]
    with pytest.raises(ConfigError, match=r"clients=3.*use 2"):
        natural(data, 3, 0)
    with pytest.raises(ConfigError, match="does not say which client"):
        natural(make_dataset([0, 1]), 2, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: iid(d, 956, 0), r"clients=956: there are only 955"),
        (lambda d: iid(d, 10, 0, quantity_alpha=0.0), r"quantity_alpha=0.0: must be above 0"),
        (lambda d: dirichlet(d, 10, 0, alpha=0.0), r"alpha=0.0: must be above 0"),
        (lambda d: dirichlet(d, 10, 0, alpha=1.0, construction="x"), r"construction=x: must be client_prior"),
        (lambda d: dirichlet(d, 96, 0, alpha=1.0, construction="class_split"), r"clients=96: 955 examples cannot"),
        (
            lambda d: dirichlet(d, 90, 0, alpha=0.01, construction="class_split", tries=3),
            r"alpha=0.01: no split in 3 tries",
        ),
        (lambda d: dirichlet(d, 10, 0, alpha=1.0, published_draw=True), r"published_draw=true: is for .*class_split"),
        (lambda d: dirichlet(d, 10, 0, alpha=1.0, min_size=3), r"min_size=3: is for .*class_split; use 10"),
        (lambda d: dirichlet(d, 10, 0, alpha=1.0, tries=7), r"tries=7: is for .*class_split; use 1000"),
        (
            lambda d: dirichlet(d, 10, 2**32, alpha=1.0, construction="class_split", published_draw=True),
            r"published_draw=true: takes a seed .* from 0 to 4294967295, not 4294967296",
        ),
        (lambda d: shards(d, 5, 0, per_client=1), r"clients=5: 5 x 1 shards leave some .* use at least 10 clients"),
        (lambda d: shards(d, 3, 0, per_client=3), r"clients=3: 3 x 3 shards leave some .* use at least 4 clients"),
        (lambda d: shards(d, 955, 0, per_client=1), r"class 0 has 91 examples for 96 shards; use fewer clients"),
        (lambda d: shards(d, 20, 0, per_client=11), r"per_client=11: must be from 1 to 10"),
        (lambda d: classes(d, 9, 0), r"clients=9: fewer clients than the 10 classes"),
        (lambda d: classes(d, 2000, 0, per_client=5), r"class 0 has 91 examples for \d+ owners; use fewer clients"),
    ],
)
def test_impossible_ones_say_which_number_to_change(make, message):
    with pytest.raises(ConfigError, match=message):
        make(make_dataset(LABELS))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: shards(d, 4, 0, per_client=1), r"class 3 has 0 examples for 1 shards"),
        (lambda d: shards(d, 8, 0, per_client=1), r"class 3 has 0 examples for 2 shards"),
        (lambda d: classes(d, 8, 0), r"class 3 has 0 examples for \d+ owners"),
        (lambda d: emd(d, 4, 0, target=0.5), r"a class has only 0 examples"),
    ],
)
def test_no_number_of_clients_helps_where_a_class_has_no_examples(make, message):
    data = replace(make_dataset(np.arange(300) % 3), classes=4)
    with pytest.raises(ConfigError, match=rf"{message}; use another partition, or more data"):
        make(data)
