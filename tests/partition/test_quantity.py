"""Quantity skew on top of any partition: sizes, label distributions, seeds, every option of conf/partition."""

import numpy as np
import pytest
import torch
from composing import composed
from program import SMALL
from worlds import make_dataset

from fedexp.building import build_dataset, build_world
from fedexp.config.checks import check
from fedexp.errors import ConfigError
from fedexp.partition.dirichlet import dirichlet
from fedexp.partition.iid import iid
from fedexp.partition.quantity import thinned
from fedexp.randomness import numpy_generator

LABELS = torch.arange(10).repeat_interleave(100)


def test_sizes_follow_the_dirichlet_distribution():
    parts = iid(make_dataset(LABELS), 10, 0)
    kept = thinned(parts, LABELS, 0.5, seed=3)
    share = numpy_generator(3, "quantity skew").dirichlet(np.full(10, 0.5))
    assert [len(part) for part in kept] == [max(1, round(100 * each)) for each in share / share.max()]
    assert max(map(len, kept)) == 100
    for few, all_ in zip(kept, parts):
        assert torch.isin(few, all_).all() and len(few.unique()) == len(few)


def test_a_client_s_label_distribution_stays_as_it_is():
    parts = dirichlet(make_dataset(LABELS), 8, 0, alpha=0.3)
    for few, all_ in zip(thinned(parts, LABELS, 1.0, seed=0), parts):
        counts, before = (torch.bincount(LABELS[part], minlength=10).double() for part in (few, all_))
        assert ((counts - before * len(few) / len(all_)).abs() < 1 + 1e-9).all()


def test_smaller_alpha_is_more_skew_and_seeds_differ():
    parts = iid(make_dataset(LABELS), 10, 0)
    spread = {alpha: torch.tensor([len(part) for part in thinned(parts, LABELS, alpha, 1)]).double()
              for alpha in (0.3, 100.0)}  # fmt: skip
    assert spread[0.3].std() / spread[0.3].mean() > 3 * spread[100.0].std() / spread[100.0].mean()
    first, again, other = (thinned(parts, LABELS, 1.0, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert [len(part) for part in first] != [len(part) for part in other]


PARTITIONS = {
    "iid": [], "shards2": [], "dir0.1": [], "dir": ["partition.construction=class_split", "partition.alpha=1"],
    "classes2": [], "mc": ["partition.mean=20", "partition.smallest=5"], "bc": ["partition.mean=20"],
    "pa": ["partition.log_mean=3"],
    "emd": ["partition.target=0.8"],
}  # fmt: skip


@pytest.mark.parametrize("name", PARTITIONS)
def test_it_combines_with_every_partition(name):
    words = [*SMALL, f"partition={name}", *PARTITIONS[name]]
    plain, skewed = (composed(*words, *more) for more in ([], ["partition.quantity_skew=0.5"]))
    check(skewed)
    dataset = build_dataset(plain)
    before, after = (build_world(config, dataset) for config in (plain, skewed))
    assert (after.sizes >= 1).all() and (after.sizes <= before.sizes).all()
    assert after.sizes.sum() < before.sizes.sum() and (after.sizes == before.sizes).any()
    for client in range(after.clients):
        assert torch.isin(after.of(client), before.of(client)).all()


@pytest.mark.parametrize(
    ("value", "right"),
    [("0", "above 0, or null"), ("-1", "above 0, or null"), ("inf", "finite"), ("word", "above 0, or null")],
)
def test_what_cannot_work_is_refused(value, right):
    with pytest.raises(ConfigError, match=rf"^partition\.quantity_skew={value}: must be {right}"):
        check(composed(*SMALL, f"partition.quantity_skew={value}"))
