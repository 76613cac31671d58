"""scikit-learn's handwritten digits: 1,797 images of 8x8, ten classes, embedded in the package."""

from math import ceil

import torch
import torch.nn.functional as F

from fedexp.data.dataset import Dataset
from fedexp.data.transform import Transform
from fedexp.errors import require


def digits(transform: Transform, test_fraction: float = 0.2, size: int = 8) -> Dataset:
    """1,437 training and 360 test images (stratified, always the same split), enlarged to size x size."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    require(size >= 8, "dataset.size", size, "must be at least 8, the images' own size")
    require(0 < test_fraction < 1, "dataset.test_fraction", test_fraction, "must be in (0, 1)")
    images, labels = load_digits(return_X_y=True)
    tested = ceil(test_fraction * len(labels))
    require(
        10 <= tested <= len(labels) - 10, "dataset.test_fraction", test_fraction,
        f"tests {tested} of {len(labels)} images; training and test each need one of every class, so at least 10",
    )  # fmt: skip
    pixels = torch.from_numpy((images * (255 / 16)).round().astype("float32").reshape(-1, 1, 8, 8))
    enlarged = F.interpolate(pixels, size=size, mode="bilinear").round().to(torch.uint8).numpy()
    parts = train_test_split(enlarged, labels, test_size=test_fraction, stratify=labels, random_state=0)
    train_x, test_x, train_y, test_y = map(torch.from_numpy, parts)
    return Dataset("digits", train_x, train_y.long(), test_x, test_y.long(), 10, transform)
