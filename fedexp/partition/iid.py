"""Independent and identically distributed clients."""

import numpy as np
import torch
from torch import Tensor

from fedexp.data import Dataset
from fedexp.partition.sizes import client_sizes
from fedexp.randomness import numpy_generator


def iid(dataset: Dataset, clients: int, seed: int, quantity_alpha: float | None = None) -> list[Tensor]:
    """All examples shuffled and split, evenly or with quantity skew."""
    random = numpy_generator(seed, "partition")
    sizes = client_sizes(len(dataset.train_y), clients, quantity_alpha, random)
    order = random.permutation(len(dataset.train_y))
    return [torch.from_numpy(part) for part in np.split(order, sizes.cumsum()[:-1])]
