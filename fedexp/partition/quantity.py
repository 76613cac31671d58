"""Quantity skew on top of any partition: clients keep unequal shares of the examples that it gave them."""

import numpy as np
import torch
from torch import Tensor

from fedexp.errors import require
from fedexp.partition.sizes import rounded
from fedexp.randomness import numpy_generator


def thinned(parts: list[Tensor], labels: Tensor, alpha: float, seed: int) -> list[Tensor]:
    """Client k keeps round(n_k q_k / max q) of its n_k examples, at least one, with q ~ Dirichlet(alpha 1_N): the
    client with the largest share keeps all. Label distributions stay as they are, up to rounding.

    parts: example ids of each client; labels: of all examples. Examples that no client keeps are not used; partitions
    with a `quantity_alpha` of their own use all. Raises ConfigError for an alpha that is not in (0, 1e12].
    """
    require(0 < alpha <= 1e12, "partition.quantity_skew", alpha, "must be above 0 and at most 1e12, or null")
    random = numpy_generator(seed, "quantity skew")
    share = random.dirichlet(np.full(len(parts), alpha))
    return [_some(part, labels[part], keep, random) for part, keep in zip(parts, share / share.max())]


def _some(part: Tensor, labels: Tensor, keep: float, random: np.random.Generator) -> Tensor:
    """A share of the examples, and the same share of each label, rounded by largest remainder."""
    there, counts = np.unique(labels.numpy(), return_counts=True)
    kept = rounded(counts * keep, max(1, round(len(part) * keep)))
    order = random.permutation(len(part))
    chosen = [order[labels.numpy()[order] == label][:count] for label, count in zip(there, kept)]
    return part[torch.from_numpy(np.sort(np.concatenate(chosen)))]
