"""The CNN of TensorFlow's CIFAR-10 tutorial, which McMahan et al. (2017) use for CIFAR-10."""

import torch
from torch import Tensor, nn

from fedexp.models.classifier import Classifier
from fedexp.models.images import image_shape
from fedexp.models.initial import initialise


class LocalResponse(nn.Module):
    """TensorFlow's lrn(depth_radius 4, bias 1, alpha 0.001/9, beta 0.75). PyTorch's own would divide alpha by its size.

    The sums over nine neighbouring channels are one product with a band of ones, many times faster than nine shifts.
    """

    def forward(self, x: Tensor) -> Tensor:
        channel = torch.arange(x.shape[1], device=x.device)
        band = ((channel[:, None] - channel).abs() <= 4).to(x.dtype)[:, :, None, None]
        return x * (1 + 0.001 / 9 * nn.functional.conv2d(x.square(), band)) ** -0.75


def tf_cnn(shape: tuple[int, ...], classes: int, initialisation: str = "pytorch") -> Classifier:
    """conv 5x5x64 same, pool 3/2, LRN, conv 5x5x64 same, LRN, pool 3/2, fc 384, fc 192, fc C.

    Pools pad as TensorFlow's SAME. 3x24x24 and 10 classes: 1,068,298 parameters; 3x32x32: 1,756,426.
    initialisation=tensorflow: deviations 0.05 (convolutions), 0.04 and 1 / 192 (head), biases 0 (first, head) and 0.1.
    """
    channels, height, width = image_shape(shape, "tf_cnn", 8)
    half, small = (-(-height // 2), -(-width // 2)), -(-height // 4) * -(-width // 4)
    encoder = nn.Sequential(
        nn.Conv2d(channels, 64, 5, padding=2), nn.ReLU(), _same_pool(height, width), LocalResponse(),
        nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), LocalResponse(), _same_pool(*half),
        nn.Flatten(), nn.Linear(64 * small, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(),
    )  # fmt: skip
    net = Classifier(encoder, nn.Linear(192, classes))
    initialise(net, initialisation, deviations=[0.05, 0.05, 0.04, 0.04, 1 / 192], biases=[0.0, 0.1, 0.1, 0.1, 0.0])
    return net


def _same_pool(height: int, width: int) -> nn.MaxPool2d:
    """Pool 3/2 of ceil(side / 2), padded like TensorFlow's SAME: an odd side at both ends, an even one at its end."""
    return nn.MaxPool2d(3, 2, padding=(height % 2, width % 2), ceil_mode=True)
