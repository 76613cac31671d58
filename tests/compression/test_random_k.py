"""Random-k: which entries cross, unbiased without error feedback, the neutral setting."""

import pytest
import torch
from worlds import gap, play

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.compression.random_k import RandomK
from fedexp.errors import ConfigError

X = {"x": torch.tensor([3.0, -1.0, 0.5, -2.0], dtype=torch.float64)}
KEYS = torch.arange(40_000) * 7919 + 3


def read(compression, update, keys=KEYS):
    """What the server reads of one update under each key [n, ...]."""
    payloads = torch.vmap(lambda key: compression.encode(update, compression.init(update), key)[0])(keys)
    return torch.vmap(lambda payload: compression.decode(payload, update))(payloads)


def test_entries_cross_as_they_are_with_error_feedback():
    found = read(RandomK(share=0.5), X)["x"]
    assert ((found == 0) | (found == X["x"])).all()
    assert ((found != 0).sum(1) == 2).all()
    pairs = (found != 0).long() @ torch.tensor([1, 2, 4, 8])
    counts = torch.bincount(pairs, minlength=16)
    assert sorted(counts.nonzero().flatten().tolist()) == [3, 5, 6, 9, 10, 12]  # all six pairs,
    assert (counts[counts > 0] / len(KEYS) - 1 / 6).abs().max() < 4 * (5 / 36 / len(KEYS)) ** 0.5  # equally often


def test_unbiased_without_error_feedback():
    """Times d / k; the variance of (3, -1, .5, -2) with k = 2 is (d / k - 1) ||x||^2 = 14.25."""
    found = read(RandomK(share=0.5, error_feedback=False), X)["x"]
    errors = found.std(0) / len(KEYS) ** 0.5
    assert ((found.mean(0) - X["x"]).abs() < 4 * errors).all()
    assert (found - X["x"]).square().sum(1).mean() == pytest.approx(14.25, rel=0.02)


def test_the_error_is_what_was_not_drawn():
    compression = RandomK(share=0.5)
    payload, memory = compression.encode(X, compression.init(X), torch.tensor(5))
    sent = compression.decode(payload, X)["x"]
    assert torch.equal(memory["error"]["x"], torch.where(sent == 0, X["x"], 0.0))
    later = compression.decode(compression.encode(tree.apply(torch.zeros_like, X), memory, torch.tensor(6))[0], X)["x"]
    assert torch.equal(later[later != 0], X["x"][later != 0]) and (later != 0).any()


@pytest.mark.parametrize("error_feedback", [False, True])
def test_all_entries_are_fedavg(error_feedback):
    compression = RandomK(share=1.0, error_feedback=error_feedback)
    assert gap(play(FedAvg(compression=compression), "norm"), play(FedAvg(), "norm")) == 0


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"compression\.share=0: must be in \(0, 1\]"):
        RandomK(share=0)
