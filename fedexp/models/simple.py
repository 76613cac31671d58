"""SimpleCNN of NIID-Bench (Li et al., ICDE 2022), which FedConcat and FedCat's later code use."""

from torch import nn

from fedexp.errors import require
from fedexp.models.classifier import Classifier


def simple_cnn(shape: tuple[int, ...], classes: int) -> Classifier:
    """conv 5x5x6, pool 2, conv 5x5x16, pool 2, fc 120, fc 84, fc C, with ReLU and no padding.

    3x32x32 and 10 classes: 62,006 parameters; 1x28x28: 44,426.
    """
    channels, height, width = shape
    sides = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    require(min(sides) >= 1, "model", "simple_cnn", f"needs images of at least 16x16, got {shape}")
    encoder = nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * sides[0] * sides[1], 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
    )  # fmt: skip
    return Classifier(encoder, nn.Linear(84, classes))
