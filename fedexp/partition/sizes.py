"""The number of examples of each client."""

from math import inf

import numpy as np

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
    require(0 < quantity_alpha < inf, "partition.quantity_alpha", quantity_alpha, "must be above 0 and finite, or null")
    share = random.dirichlet(np.full(clients, quantity_alpha)) * (examples - clients)
    sizes = np.floor(share).astype(int)
    short = examples - clients - sizes.sum()
    sizes[np.argsort(sizes - share)[:short]] += 1
    return sizes + 1
