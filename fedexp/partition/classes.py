"""#C = k: each client holds k labels (Li et al., NIID-Bench, ICDE 2022; FedConcat's #C=2 and #C=3)."""

import random as python_random

import numpy as np
import torch
from torch import Tensor

from fedexp.data import Dataset
from fedexp.errors import require
from fedexp.partition.sizes import fewer, shuffled_classes
from fedexp.randomness import numpy_generator


def classes(dataset: Dataset, clients: int, seed: int, per_client: int = 2) -> list[Tensor]:
    """Client i holds label i mod C and k - 1 other random labels; each class is shuffled and split evenly
    among its owners, in client order.

    Labels are drawn by Python's own generator from the plain seed, as in the published code: seed 1 with
    k = 2 and ten classes gives the paper's {0, 2} and {1, 9} (FedConcat, appendix C).
    """
    count = dataset.classes
    require(1 <= per_client <= count, "partition.per_client", per_client, f"must be from 1 to {count} (classes)")
    require(
        clients >= count, "clients", clients,
        f"fewer clients than the {count} classes leave a class to no client; use at least {count}",
    )  # fmt: skip
    draw = python_random.Random(seed)
    owned = [_labels(client % count, per_client, count, draw) for client in range(clients)]
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label, ids in enumerate(shuffled_classes(dataset, numpy_generator(seed, "partition"))):
        owners = [client for client in range(clients) if label in owned[client]]
        advice = fewer(len(ids), clients, count)
        require(
            len(ids) >= len(owners), "clients", clients,
            f"class {label} has {len(ids)} examples for {len(owners)} owners; {advice}",
        )  # fmt: skip
        for client, piece in zip(owners, np.array_split(ids, len(owners))):
            parts[client].append(piece)
    return [torch.from_numpy(np.concatenate(part)) for part in parts]


def _labels(first: int, per_client: int, count: int, draw: python_random.Random) -> list[int]:
    own = [first]
    while len(own) < per_client:
        label = draw.randint(0, count - 1)
        if label not in own:
            own.append(label)
    return own
