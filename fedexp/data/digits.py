"""scikit-learn's handwritten digits: 1,797 images of 8x8, ten classes, embedded in the package."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fedexp.data.dataset import Dataset, Transform
from fedexp.errors import require


def digits(transform: Transform, test_fraction: float = 0.2) -> Dataset:
    """1,437 training and 360 test images (stratified, always the same split)."""
    require(0 < test_fraction < 1, "dataset.test_fraction", test_fraction, "must be in (0, 1)")
    images, labels = load_digits(return_X_y=True)
    pixels = (images * (255 / 16)).round().astype("uint8").reshape(-1, 1, 8, 8)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels, test_size=test_fraction, stratify=labels, random_state=0
    )
    return Dataset(
        "digits",
        torch.from_numpy(train_x),
        torch.from_numpy(train_y).long(),
        torch.from_numpy(test_x),
        torch.from_numpy(test_y).long(),
        10,
        transform,
    )
