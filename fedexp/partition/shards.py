"""Shards of examples sorted by class (McMahan et al. 2017; Zhao et al. 2018, section 2.1)."""

import numpy as np
import torch
from torch import Tensor

from fedexp.data import Dataset
from fedexp.errors import require
from fedexp.partition.sizes import fewer, shuffled_classes
from fedexp.randomness import numpy_generator


def shards(dataset: Dataset, clients: int, seed: int, per_client: int = 2) -> list[Tensor]:
    """`per_client` shards for each client, all of different classes; all examples are used.

    Each class is cut into equal shards of its own, so that a client holds exactly `per_client` classes even
    if classes differ in size (as in MNIST, where equal parts of the sorted list would straddle classes).
    With one shard per client and as many clients as classes, client c holds class c, as in Zhao et al.
    """
    classes = dataset.classes
    total = clients * per_client
    require(1 <= per_client <= classes, "partition.per_client", per_client, f"must be from 1 to {classes} (classes)")
    least = -(-classes // per_client)
    require(
        total >= classes, "clients", clients,
        f"{clients} x {per_client} shards leave some of the {classes} classes to no client; "
        f"use at least {least} clients",
    )  # fmt: skip
    random = numpy_generator(seed, "partition")
    cuts = np.full(classes, total // classes) + (np.arange(classes) < total % classes)
    counts = np.bincount(dataset.train_y.numpy(), minlength=classes)
    poor = int(np.argmin(counts - cuts))
    advice = fewer(counts[poor], clients, least)
    require(
        counts[poor] >= cuts[poor], "clients", clients,
        f"class {poor} has {counts[poor]} examples for {cuts[poor]} shards; {advice}",
    )  # fmt: skip
    pieces = [np.array_split(pool, count) for pool, count in zip(shuffled_classes(dataset, random), cuts)]
    owned = _deal(cuts, clients, per_client, random)
    return [torch.from_numpy(np.concatenate([pieces[label].pop() for label in own])) for own in owned]


def _deal(cuts: np.ndarray, clients: int, per_client: int, random: np.random.Generator) -> list[list[int]]:
    """The classes of each client, all different, so that class c occurs cuts[c] times in all.

    Classes are dealt one after another to the clients with most places left, ties broken at random. That is
    always possible, because no class has more shards than there are clients.
    """
    if per_client == 1:
        return [[client % len(cuts)] for client in range(clients)]
    left = np.full(clients, per_client)
    owned: list[list[int]] = [[] for _ in range(clients)]
    for label in random.permutation(len(cuts)):
        takers = np.lexsort((random.random(clients), -left))[: cuts[label]]
        for client in takers:
            owned[client].append(int(label))
        left[takers] -= 1
    return owned
