"""The embedded data set, and what every data set must be like."""

import pytest
import torch

from fedexp.data import Dataset, Transform
from fedexp.data.digits import digits
from fedexp.data.made import made
from fedexp.errors import ConfigError


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


@pytest.mark.parametrize("fraction", [0.005, 0.995])
def test_digits_without_every_class_on_both_sides_are_refused(fraction):
    with pytest.raises(ConfigError, match=rf"dataset\.test_fraction={fraction}: .*at least 10"):
        digits(Transform(), fraction)


@pytest.mark.parametrize("fraction", [0.0056, 0.994])
def test_digits_of_the_smallest_parts(fraction):
    data = digits(Transform(), fraction)
    assert len(data.train_y.unique()) == len(data.test_y.unique()) == 10


GOOD = torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("train_y", "test_y", "message"),
    [
        (GOOD + 1, GOOD, "train labels must be int64 from 0 to 2.*are int64 from 1 to 3"),
        (GOOD, GOOD - 1, "test labels must be int64 from 0 to 2.*are int64 from -1 to 1"),
        (GOOD.int(), GOOD, "train labels must be int64.*are int32 from 0 to 2"),
    ],
)
def test_labels_that_are_no_classes_are_refused(train_y, test_y, message):
    x = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    Dataset("own", x, GOOD, x, GOOD, 3, Transform())
    with pytest.raises(ConfigError, match=f"dataset=own: {message}"):
        Dataset("own", x, train_y, x, test_y, 3, Transform())
