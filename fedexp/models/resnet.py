"""ResNet-9 as in CADIS's code, ResNet-18 and ResNet-50 from torchvision's blocks, by default with CIFAR stems."""

from torch import Tensor, nn

from fedexp.errors import require
from fedexp.models.classifier import Classifier
from fedexp.models.images import image_shape


def resnet9(shape: tuple[int, ...], classes: int, dropout: float = 0.2) -> Classifier:
    """conv-BN-ReLU 32, 64 P, residual 64-64, 128 P, 256 P, residual 256-256, max-pool 4, dropout, fc C.

    3x32x32 and 10 classes: 1,647,242 parameters and 2,240 buffers. The features are those after dropout.
    """
    channels, height, width = image_shape(shape, "resnet9", 32)
    require(0 <= dropout < 1, "model.dropout", dropout, "must be in [0, 1)")
    encoder = nn.Sequential(
        _convolution(channels, 32), _convolution(32, 64, pool=True), _Residual(64),
        _convolution(64, 128, pool=True), _convolution(128, 256, pool=True), _Residual(256),
        nn.MaxPool2d(4), nn.Flatten(), nn.Dropout(dropout),
    )  # fmt: skip
    return Classifier(encoder, nn.Linear(256 * (height // 32) * (width // 32), classes))


def _convolution(inputs: int, outputs: int, pool: bool = False) -> nn.Sequential:
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []), nn.ReLU())


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_convolution(channels, channels), _convolution(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def resnet18(shape: tuple[int, ...], classes: int, stem: str = "cifar") -> Classifier:
    """stem=cifar: 3x3 stride 1, no max-pool; stem=imagenet: torchvision's own, 7x7 stride 2 with max-pool, for which
    there are pre-trained weights. 15 classes: 11,176,527 parameters."""
    return _torchvision("resnet18", shape, classes, stem)


def resnet50(shape: tuple[int, ...], classes: int, stem: str = "cifar") -> Classifier:
    """Stems as in resnet18. 10 classes: 23,520,842 parameters and 53,120 entries of buffers."""
    return _torchvision("resnet50", shape, classes, stem)


def _torchvision(name: str, shape: tuple[int, ...], classes: int, stem: str) -> Classifier:
    from torchvision import models

    require(stem in ("cifar", "imagenet"), "model.stem", stem, "must be cifar or imagenet")
    channels, _, _ = image_shape(shape, name, 1)
    net = models.get_model(name, weights=None)
    if stem == "cifar":
        net.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        net.maxpool = nn.Identity()
    else:
        require(channels == 3, "model.stem", stem, f"is for images of three colours, not of shape {shape}")
    head = nn.Linear(net.fc.in_features, classes)
    net.fc = nn.Identity()
    return Classifier(net, head)
