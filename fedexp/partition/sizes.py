"""The number of examples of each client, and the examples of each class."""

import numpy as np
import torch
from torch import Tensor

from fedexp.data import Dataset
from fedexp.errors import require

MOST_TRIES = 10_000  # for a partition that is drawn until it fits; a draw takes milliseconds


def client_sizes(examples: int, clients: int, quantity_alpha: float | None, random: np.random.Generator) -> np.ndarray:
    """Sizes [N] that sum to `examples`: equal (to within one), or in proportions drawn from Dirichlet(quantity_alpha).

    With skew every client keeps at least one example. Raises ConfigError for fewer examples than clients.
    """
    require(
        clients <= examples, "clients", clients,
        f"there are only {examples} training examples to share; use at most as many clients",
    )  # fmt: skip
    if quantity_alpha is None:
        return np.full(clients, examples // clients) + (np.arange(clients) < examples % clients)
    require(
        0 < quantity_alpha <= 1e12,
        "partition.quantity_alpha",
        quantity_alpha,
        "must be above 0 and at most 1e12, or null",
    )
    share = random.dirichlet(np.full(clients, quantity_alpha))
    return rounded(share * (examples - clients), examples - clients) + 1


def rounded(exact: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers that sum to `total`, from numbers that sum to about as much, by largest remainder."""
    whole = np.floor(exact).astype(int)
    whole[np.argsort(whole - exact, kind="stable")[: total - whole.sum()]] += 1
    return whole


def fewer(examples: int, clients: int, least: int) -> str:
    """What to do where a class has too few examples for a partition that needs at least `least` clients."""
    return "use fewer clients" if examples > 0 and clients > least else "use another partition, or more data"


def shuffled_classes(dataset: Dataset, random: np.random.Generator) -> list[np.ndarray]:
    """The ids of each class's training examples, in random order."""
    labels = dataset.train_y.numpy()
    return [random.permutation(np.flatnonzero(labels == label)) for label in range(dataset.classes)]


def dealt(dataset: Dataset, held: list[dict[int, int]], random: np.random.Generator) -> list[Tensor]:
    """The ids of each client's examples, which are drawn without replacement: held[k] are the labels of client k, and
    how many examples of each it holds."""
    left = shuffled_classes(dataset, random)
    parts = []
    for own in held:
        parts.append(torch.from_numpy(np.concatenate([left[label][:count] for label, count in own.items()])))
        for label, count in own.items():
            left[label] = left[label][count:]
    return parts
