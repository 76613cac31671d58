"""Domains: each client holds examples of one of the data set's own groups (photographs, sketches, writers)."""

import numpy as np
import torch
from torch import Tensor

from fedexp.data import Dataset
from fedexp.errors import require
from fedexp.randomness import numpy_generator


def domains(dataset: Dataset, clients: int, seed: int) -> list[Tensor]:
    """Client k belongs to domain k mod D, of D; a domain's examples are shuffled and split evenly among its clients.

    With D clients it is the natural partition. A data set's `owners` hold the domains: image_folder reads them from the
    folders train/DOMAIN/CLASS/. Raises ConfigError for fewer clients than domains, or for a domain with fewer examples
    than clients.
    """
    require(
        dataset.owners is not None, "partition", "domains",
        f"{dataset.name} does not say which domain its examples belong to; image_folder does with train/DOMAIN/CLASS/",
    )  # fmt: skip
    owners = dataset.owners[dataset.owners >= 0].unique()
    count = len(owners)
    require(clients >= count, "clients", clients, f"this data set has {count} domains; use at least as many clients")
    random, parts = numpy_generator(seed, "partition"), [torch.empty(0)] * clients
    for domain, owner in enumerate(owners):
        own = random.permutation(torch.nonzero(dataset.owners == owner).squeeze(1).numpy())
        members = range(domain, clients, count)
        require(
            len(own) >= len(members), "clients", clients,
            f"domain {domain} has {len(own)} examples for {len(members)} clients; use fewer",
        )  # fmt: skip
        for client, part in zip(members, np.array_split(own, len(members))):
            parts[client] = torch.from_numpy(np.sort(part))
    return parts
