"""The small CNN of Zhang et al. ("Hello Edge", 2017) for keyword spotting, which Zhao et al. (2018) use."""

from torch import nn

from fedexp.errors import require
from fedexp.models.classifier import Classifier
from fedexp.models.images import image_shape


def kws_cnn(shape: tuple[int, ...], classes: int) -> Classifier:
    """conv 10x4x28, conv 10x4x30 stride 2x1, linear 16, fc 128, fc C, with ReLU (none after the linear layer).

    No padding, no BatchNorm, no dropout. 1x50x10 and 10 classes: 68,980 parameters; as many for 49 frames.
    """
    channels, frames, coefficients = image_shape(shape, "kws_cnn", 1)
    time, frequency = (frames - 9 - 10) // 2 + 1, coefficients - 6
    require(min(time, frequency) >= 1, "model", "kws_cnn", f"needs at least 19 frames of 7 features, got {shape}")
    encoder = nn.Sequential(
        nn.Conv2d(channels, 28, (10, 4)), nn.ReLU(), nn.Conv2d(28, 30, (10, 4), stride=(2, 1)), nn.ReLU(),
        nn.Flatten(), nn.Linear(30 * time * frequency, 16), nn.Linear(16, 128), nn.ReLU(),
    )  # fmt: skip
    return Classifier(encoder, nn.Linear(128, classes))
