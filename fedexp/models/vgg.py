"""VGG-9 (ModerateCNN of NIID-Bench), without batch normalisation."""

from torch import nn

from fedexp.models.classifier import Classifier
from fedexp.models.images import image_shape


def vgg9(shape: tuple[int, ...], classes: int) -> Classifier:
    """3x3 convolutions 32, 64, P, 128, 128, P, Dropout2d .05, 256, 256, P, Dropout .1, fc, fc 512, fc C.

    3x32x32 and 10 classes: 3,491,530 parameters (first fc 4096 to 512); 1x28x28: 4,015,754 (2304 to 1024).
    """
    channels, height, width = image_shape(shape, "vgg9", 8)
    flat = 256 * (height // 8) * (width // 8)
    hidden = 1024 if channels == 1 else 512  # NIID-Bench's widths for its grey and its colour data sets
    encoder = nn.Sequential(
        *_block(channels, 32, 64), *_block(64, 128, 128), nn.Dropout2d(0.05), *_block(128, 256, 256),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, 512), nn.ReLU(),
        nn.Dropout(0.1),
    )  # fmt: skip
    return Classifier(encoder, nn.Linear(512, classes))


def _block(channels: int, first: int, second: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, first, 3, padding=1), nn.ReLU(),
        nn.Conv2d(first, second, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
    ]  # fmt: skip
