"""Label skew by a Dirichlet distribution, in the two constructions that papers call Dir(alpha)."""

from math import inf

import numpy as np
import torch
from torch import Tensor

from fedexp.data import Dataset
from fedexp.errors import ConfigError, require
from fedexp.partition.sizes import MOST_TRIES, client_sizes, shuffled_classes
from fedexp.randomness import numpy_generator

_MIN_SIZE, _TRIES = 10, 1000  # the defaults, which client_prior leaves as they are: it has no use for them


def dirichlet(
    dataset: Dataset, clients: int, seed: int, alpha: float, construction: str = "client_prior",
    quantity_alpha: float | None = None, min_size: int = _MIN_SIZE, tries: int = _TRIES, published_draw: bool = False,
) -> list[Tensor]:  # fmt: skip
    """Class shares drawn from a Dirichlet distribution: the smaller alpha, the stronger the skew.

    client_prior (Hsu et al. 2019; FedCat): each client has class shares q_k ~ Dir(alpha 1_C) and equally
    many examples (or with quantity skew), drawn by q_k; classes that run out are redrawn.
    class_split (NIID-Bench; FedConcat): each class is split over the clients by p ~ Dir(alpha 1_N), where clients
    that already hold an even share of all examples get none; the whole split is repeated until no client has fewer
    than `min_size` examples, at most `tries` times. published_draw: draw as the code of NIID-Bench and FedConcat does,
    with numpy's older generator from the plain seed. With the same seed each client then holds as many examples of
    each class as it does there.
    """
    require(
        0 < alpha < inf, "partition.alpha", alpha,
        "must be above 0 and finite (0.1: strong label skew; 100: nearly IID)",
    )  # fmt: skip
    require(min_size >= 0, "partition.min_size", min_size, "must be at least 0")
    require(1 <= tries <= MOST_TRIES, "partition.tries", tries, f"must be at least 1 and at most {MOST_TRIES}")
    for name, value, usual in (
        ("min_size", min_size, _MIN_SIZE), ("tries", tries, _TRIES), ("published_draw", published_draw, False),
    ):  # fmt: skip
        require(
            construction != "client_prior" or value == usual, f"partition.{name}", value,
            f"is for partition.construction=class_split; use {str(usual).lower()}",
        )  # fmt: skip
    random = numpy_generator(seed, "partition")
    labels = dataset.train_y.numpy()
    if construction == "client_prior":
        sizes = client_sizes(len(labels), clients, quantity_alpha, random)
        parts = _client_prior(dataset, sizes, alpha, random)
    elif construction == "class_split":
        require(
            quantity_alpha is None, "partition.quantity_alpha", quantity_alpha,
            "class_split makes unequal clients by itself; use null",
        )  # fmt: skip
        if published_draw:
            right = f"takes a seed (partition.seed, or the run's) from 0 to 4294967295, not {seed}"
            require(0 <= seed < 2**32, "partition.published_draw", True, right)
        draw = np.random.RandomState(seed) if published_draw else random
        parts = _class_split(labels, dataset.classes, clients, alpha, min_size, tries, draw)
    else:
        raise ConfigError("partition.construction", construction, "must be client_prior or class_split")
    return [torch.from_numpy(np.sort(part)) for part in parts]


def _client_prior(dataset: Dataset, sizes: np.ndarray, alpha: float, random: np.random.Generator) -> list[np.ndarray]:
    """Examples are dealt one by one to random clients that still have room, so that no client must take the rest."""
    prior = random.dirichlet(np.full(dataset.classes, alpha), len(sizes))
    pools = [pool.tolist() for pool in shuffled_classes(dataset, random)]
    there = np.array([float(bool(pool)) for pool in pools])
    bounds = np.cumsum(prior * there, 1)
    held: list[list[int]] = [[] for _ in sizes]
    turns = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    for client, chance in zip(turns, random.random(len(turns))):
        total = bounds[client, -1]
        if total > 0:
            label = int(np.searchsorted(bounds[client], chance * total, side="right"))
        else:  # every class that this client prefers has run out (its prior underflowed for the rest)
            label = int(np.flatnonzero(there)[int(chance * there.sum())])
        held[client].append(pools[label].pop())
        if not pools[label]:
            there[label] = 0
            bounds = np.cumsum(prior * there, 1)
    return [np.array(ids) for ids in held]


def _class_split(
    labels: np.ndarray, classes: int, clients: int, alpha: float, min_size: int, tries: int,
    random: np.random.Generator | np.random.RandomState,
) -> list[np.ndarray]:  # fmt: skip
    require(
        clients * max(1, min_size) <= len(labels), "clients", clients,
        f"{len(labels)} examples cannot give each client {min_size} (partition.min_size); use fewer clients",
    )  # fmt: skip
    for _ in range(tries):
        parts: list[list[int]] = [[] for _ in range(clients)]
        for label in range(classes):
            ids = random.permutation(np.flatnonzero(labels == label))
            share = random.dirichlet(np.full(clients, alpha))
            share *= [len(part) < len(labels) / clients for part in parts]
            if not share.sum() > 0:  # NaN too, which numpy's older generator draws where alpha is tiny
                break  # every client with room drew nothing: this attempt has failed
            cuts = (np.cumsum(share / share.sum()) * len(ids)).astype(int)[:-1]
            for part, piece in zip(parts, np.split(ids, cuts)):
                part.extend(piece.tolist())
        else:
            if min(map(len, parts)) >= max(1, min_size):
                return [np.array(part) for part in parts]
    raise ConfigError(
        "partition.alpha", alpha,
        f"no split in {tries} tries gave each of {clients} clients {min_size} of {len(labels)} examples; use a "
        "larger alpha, fewer clients, a smaller partition.min_size, or partition.construction=client_prior",
    )  # fmt: skip
