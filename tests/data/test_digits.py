"""The embedded data set and the made one."""

import pytest
import torch
from sklearn.datasets import load_digits

from fedexp.data import Transform
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
    assert data.train_y[:12].tolist() == [3, 9, 1, 3, 1, 9, 4, 4, 2, 8, 3, 5], "the same split everywhere"


def test_every_digit_is_in_one_part_with_its_label():
    data = digits(Transform())
    images, labels = load_digits(return_X_y=True)
    x, y = (torch.cat(parts) for parts in ((data.train_x, data.test_x), (data.train_y, data.test_y)))
    found = sorted(zip(x.flatten(1).tolist(), y.tolist()))
    assert found == sorted(zip((images * 255 / 16).round().astype(int).tolist(), labels.tolist()))


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
