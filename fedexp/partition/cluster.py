"""Cluster skew (CADIS, section V): clients form groups that hold the same labels, some far larger than others.

Within a client every label has the same count; every example is used at most once, and many are not used.
Sizes are drawn anew until every class has enough examples, at most `tries` times.
"""

from collections.abc import Callable
from math import inf

import numpy as np
from torch import Tensor

from fedexp.data import Dataset
from fedexp.errors import ConfigError, require
from fedexp.partition.sizes import MOST_TRIES, dealt, rounded
from fedexp.randomness import numpy_generator


def multi_cluster(
    dataset: Dataset, clients: int, seed: int, ratios: list[float], mean: float, deviation: float,
    smallest: int = 1, largest: int | None = None, tries: int = 100,
) -> list[Tensor]:  # fmt: skip
    """MC: one cluster for each ratio, clients divided by the ratios, and one contiguous block of classes per cluster.

    A client has n ~ N(mean, deviation) examples, clipped to [smallest, largest].
    """
    clusters = len(ratios)
    require(
        1 <= clusters <= dataset.classes, "partition.ratios", ratios,
        f"must name 1 to {dataset.classes} clusters: each needs a class of its own",
    )  # fmt: skip
    require(
        min(ratios) > 0 and sum(ratios) < inf, "partition.ratios", ratios, "must all be above 0, and their sum finite"
    )
    members = rounded(np.array(ratios) / sum(ratios) * clients, clients)
    require(
        min(members) >= 1, "clients", clients, f"leaves a cluster of partition.ratios={ratios} empty; use more clients"
    )
    blocks = np.array_split(np.arange(dataset.classes), clusters)
    labels = [block for block, count in zip(blocks, members) for _ in range(count)]
    random = numpy_generator(seed, "partition")
    return _draw(dataset, lambda: labels, mean, deviation, smallest, largest, tries, random)


def single_cluster(
    dataset: Dataset, clients: int, seed: int, share: float, mean: float, deviation: float = 0.0,
    labels_per_client: int | None = None, smallest: int = 1, largest: int | None = None, tries: int = 100,
) -> list[Tensor]:  # fmt: skip
    """BC and UC: a `share` of the clients holds the first classes; every other client holds random other classes.

    labels_per_client: null for a fifth of the classes. deviation 0: balanced (BC); above: unbalanced (UC).
    """
    held = max(1, dataset.classes // 5) if labels_per_client is None else labels_per_client
    require(
        1 <= held <= dataset.classes // 2, "partition.labels_per_client", held,
        f"must be from 1 to {dataset.classes // 2}, so that other classes remain for the other clients",
    )  # fmt: skip
    require(0 < share < 1, "partition.share", share, "must be between 0 and 1")
    inside = round(share * clients)
    require(
        0 < inside < clients, "partition.share", share,
        f"puts {inside} of {clients} clients into the cluster; at least one must be inside and one outside",
    )  # fmt: skip
    random = numpy_generator(seed, "partition")
    others = np.arange(held, dataset.classes)

    def labels() -> list[np.ndarray]:
        outside = [random.choice(others, held, replace=False) for _ in range(clients - inside)]
        return [np.arange(held)] * inside + outside

    return _draw(dataset, labels, mean, deviation, smallest, largest, tries, random)


def _draw(
    dataset: Dataset, labels: Callable[[], list[np.ndarray]], mean: float, deviation: float, smallest: int,
    largest: int | None, tries: int, random: np.random.Generator,
) -> list[Tensor]:  # fmt: skip
    """The examples of clients whose labels are drawn by `labels()`; a client holds each of its labels equally often."""
    require(1 <= mean < inf, "partition.mean", mean, "must be at least 1 example per client")
    require(smallest >= 1, "partition.smallest", smallest, "must be at least 1 example per client")
    require(0 <= deviation < inf, "partition.deviation", deviation, "must be at least 0")
    require(1 <= tries <= MOST_TRIES, "partition.tries", tries, f"must be at least 1 and at most {MOST_TRIES}")
    require(
        largest is None or largest >= smallest, "partition.largest", largest, f"must be at least smallest={smallest}"
    )
    there = np.bincount(dataset.train_y.numpy(), minlength=dataset.classes)
    for _ in range(tries):
        held = labels()
        sizes = np.clip(random.normal(mean, deviation, len(held)), smallest, largest)
        each = [_each(size, len(own), smallest, largest) for size, own in zip(sizes, held)]
        needed = np.zeros(dataset.classes, int)
        for count, own in zip(each, held):
            needed[own] += count
        if (needed <= there).all():
            return dealt(dataset, [dict.fromkeys(own, count) for own, count in zip(held, each)], random)
    short = int(np.argmax(needed - there))
    owners = [own for own in held if short in own]
    most = there[short] // len(owners) * len(owners[0])
    ways = ["fewer clients"]
    if mean <= most and smallest <= most:
        ways.append(f"a partition.deviation below {deviation}")
    elif most >= 1:
        ways.append(f"a mean of at most {most}" + (", partition.smallest too" if smallest > most else ""))
    raise ConfigError(
        "partition.mean", mean,
        f"class {short} has {there[short]} examples for {len(owners)} clients that need {needed[short]}; "
        f"use {' or '.join(ways)}",
    )  # fmt: skip


def _each(size: float, labels: int, smallest: int, largest: int | None) -> int:
    """How often a client of about `size` examples holds each of its labels: smallest to largest examples in all."""
    least, most = -(-smallest // labels), inf if largest is None else largest // labels
    require(
        least <= most, "partition.largest", largest,
        f"no number of examples from smallest={smallest} on holds {labels} labels equally often",
    )  # fmt: skip
    return int(max(least, min(most, round(size / labels))))
