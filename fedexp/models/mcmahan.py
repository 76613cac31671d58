"""The CNN of McMahan et al. (AISTATS 2017): two 5x5 convolutions and a hidden layer of 512."""

from torch import nn

from fedexp.errors import require
from fedexp.models.classifier import Classifier
from fedexp.models.images import image_shape
from fedexp.models.initial import initialise


def mcmahan_cnn(shape: tuple[int, ...], classes: int, hidden: int = 512, initialisation: str = "pytorch") -> Classifier:
    """conv 5x5x32 same, pool 2, conv 5x5x64 same, pool 2, fc `hidden`, fc C, with ReLU.

    1x28x28 and 10 classes: 1,663,370 parameters; 62 classes: 1,690,046. Images of other sides change only the
    hidden layer's input. Pooling comes before ReLU: the same function, on a quarter of the entries.
    initialisation=tensorflow: deviations and biases of 0.1 everywhere, as TensorFlow's MNIST tutorial.
    """
    channels, height, width = image_shape(shape, "mcmahan_cnn", 4)
    require(hidden >= 1, "model.hidden", hidden, "must be at least 1")
    encoder = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), hidden), nn.ReLU(),
    )  # fmt: skip
    net = Classifier(encoder, nn.Linear(hidden, classes))
    initialise(net, initialisation, deviations=[0.1] * 4, biases=[0.1] * 4)
    return net
