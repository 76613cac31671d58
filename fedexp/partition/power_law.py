"""PA (CADIS's Pareto): few labels per client, client sizes from a heavy-tailed law."""

from math import inf, isfinite

import numpy as np
import torch
from torch import Tensor

from fedexp.data import Dataset
from fedexp.errors import require
from fedexp.randomness import numpy_generator


def power_law(
    dataset: Dataset, clients: int, seed: int, labels_per_client: int, log_mean: float, log_deviation: float
) -> list[Tensor]:
    """Each client draws labels with replacement, so that some hold fewer than `labels_per_client`.

    A client's size is lognormal(log_mean, log_deviation), divided equally among its draws of labels: at least one
    example for each draw, and at most all examples of a class. Clients draw examples independently: several clients
    may hold the same example, as in the published index files.
    """
    require(
        1 <= labels_per_client <= dataset.classes, "partition.labels_per_client", labels_per_client,
        f"must be from 1 to {dataset.classes} (classes)",
    )  # fmt: skip
    require(isfinite(log_mean), "partition.log_mean", log_mean, "must be finite")
    require(0 <= log_deviation < inf, "partition.log_deviation", log_deviation, "must be at least 0")
    random = numpy_generator(seed, "partition")
    labels = dataset.train_y.numpy()
    pools = [np.flatnonzero(labels == label) for label in range(dataset.classes)]
    there = np.flatnonzero([len(pool) for pool in pools])
    parts = []
    for _ in range(clients):
        drawn = random.choice(there, labels_per_client)
        each = max(1, round(min(random.lognormal(log_mean, log_deviation) / labels_per_client, len(labels))))
        own = [
            random.choice(pools[label], min(each * int((drawn == label).sum()), len(pools[label])), replace=False)
            for label in np.unique(drawn)
        ]
        parts.append(torch.from_numpy(np.concatenate(own)))
    return parts
