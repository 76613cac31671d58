"""Domains: one for each client, shared evenly; from a folder a domain."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from worlds import make_dataset

from fedexp.data import Transform
from fedexp.data.image_folder import image_folder
from fedexp.errors import ConfigError
from fedexp.partition.domains import domains
from fedexp.partition.natural import natural

OWNERS = torch.arange(3).repeat_interleave(torch.tensor([20, 7, 33]))[torch.randperm(60)]
DATA = replace(make_dataset(torch.arange(60) % 4), owners=OWNERS)


@pytest.mark.parametrize("clients", [3, 7, 9])
def test_every_client_is_of_one_domain_and_a_domain_is_shared_evenly(clients):
    parts = domains(DATA, clients, seed=1)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(60))
    for client, part in enumerate(parts):
        assert set(OWNERS[part].tolist()) == {client % 3}
    for domain in range(3):
        sizes = [len(part) for part in parts[domain::3]]
        assert max(sizes) - min(sizes) <= 1


def test_seeds_repeat_and_differ():
    first, again, other = (domains(DATA, 6, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not all(torch.equal(a, b) for a, b in zip(first, other))


def test_a_client_a_domain_is_the_natural_partition():
    assert all(torch.equal(a, b) for a, b in zip(domains(DATA, 3, 5), natural(DATA, 3, 0)))


def test_owners_may_have_any_numbers():
    """As in a user's selection of a source's clients; clients follow the order of these numbers."""
    gaps = replace(DATA, owners=torch.where(OWNERS == 2, 900, OWNERS * 7))
    for part, same in zip(natural(gaps, 3, 0) + domains(gaps, 6, 1), natural(DATA, 3, 0) + domains(DATA, 6, 1)):
        assert torch.equal(part, same)


def test_a_folder_a_domain(tmp_path):
    """Photographs are bright, sketches dark; both hold both classes, and the test set pools them."""
    for part in ("train", "test"):
        for domain, grey in (("photo", 200), ("sketch", 30)):
            for label in ("cat", "dog"):
                for number in range(4):
                    path = tmp_path / part / domain / label / f"{number}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(np.full((8, 8, 3), grey + number, dtype=np.uint8)).save(path)
    data = image_folder(str(tmp_path), Transform())
    assert (data.classes, len(data.train_y), len(data.test_y)) == (2, 16, 16)
    for client, part in enumerate(domains(data, 4, seed=0)):
        assert len(part) == 4
        assert ((data.train_x[part] >= 200) == (client % 2 == 0)).all()


@pytest.mark.parametrize(
    ("data", "clients", "said"),
    [
        (make_dataset([0, 1, 2]), 3, r"partition=domains: made does not say which domain.*train/DOMAIN/CLASS/"),
        (DATA, 2, r"clients=2: this data set has 3 domains; use at least as many clients"),
        (DATA, 30, r"clients=30: domain 1 has 7 examples for 10 clients; use fewer"),
    ],
)
def test_what_cannot_work_is_refused(data, clients, said):
    with pytest.raises(ConfigError, match=said):
        domains(data, clients, 0)
