"""The embedded data set."""

import torch

from fedexp.data import Transform
from fedexp.data.digits import digits
from fedexp.data.made import made


def test_digits():
    data = digits(Transform())
    assert data.train_x.shape == (1437, 1, 8, 8)
    assert data.test_x.shape == (360, 1, 8, 8)
    assert data.train_x.dtype == torch.uint8
    assert data.train_x.max() == 255
    counts = torch.bincount(data.test_y)
    assert len(counts) == 10
    assert counts.max() - counts.min() <= 3  # stratified
    assert torch.equal(data.train_x, digits(Transform()).train_x)


def test_made():
    data = made(Transform(), [3, 5, 6], classes=7, train=50, test=9)
    assert data.train_x.shape == (50, 3, 5, 6)
    assert len(data.test_y) == 9
    assert data.train_y.max() <= 6
