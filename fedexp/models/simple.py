"""SimpleCNN of NIID-Bench (Li et al., ICDE 2022), which FedConcat and FedCat's later code use."""

import torch
from torch import Tensor, nn

from fedexp.errors import require
from fedexp.models.classifier import Classifier
from fedexp.models.images import image_shape


def simple_cnn(shape: tuple[int, ...], classes: int) -> Classifier:
    """conv 5x5x6, pool 2, conv 5x5x16, pool 2, fc 120, fc 84, fc C, with ReLU and no padding.

    3x32x32 and 10 classes: 62,006 parameters; 1x28x28: 44,426.
    """
    return Classifier(_encoder(shape, "simple_cnn"), nn.Linear(84, classes))


def simple_cnn_wide(shape: tuple[int, ...], classes: int, width: int = 5) -> Classifier:
    """`width` encoders of simple_cnn side by side and one head over all their features, trained end to end:
    the size of FedConcat's concatenated model (its appendix D.4). 3x32x32, 10 classes, 5: 309,990 parameters.
    """
    require(width >= 1, "model.width", width, "must be at least 1")
    encoders = [_encoder(shape, "simple_cnn_wide") for _ in range(width)]
    return Classifier(_SideBySide(encoders), nn.Linear(84 * width, classes))


class _SideBySide(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([encoder(x) for encoder in self], 1)


def _encoder(shape: tuple[int, ...], model: str) -> nn.Sequential:
    channels, height, width = image_shape(shape, model, 16)
    sides = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * sides[0] * sides[1], 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
    )  # fmt: skip
