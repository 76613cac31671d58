"""Small worlds that tests train in: made data, or scikit-learn's digits; nothing is downloaded."""

import pytest
import torch
from torch import nn

from fedexp.data import Dataset, Transform
from fedexp.engine import Engine, Hardware, Local
from fedexp.models import Classifier, Model
from fedexp.world import World

SIZES = [5, 40, 17, 30, 8, 20]  # unequal on purpose: some smaller than a batch, none a multiple of 8


def make_world(sizes=SIZES, classes=4, shape=(1, 8, 8), dtype=torch.float64, transform=None) -> World:
    """Random images with labels that depend on them, client k holding sizes[k] of them."""
    draw = torch.Generator().manual_seed(7)
    n = sum(sizes)
    x = torch.randint(0, 256, (n + 40, *shape), generator=draw, dtype=torch.uint8)
    y = torch.randint(0, classes, (n + 40,), generator=draw)
    x[:, 0, 0, 0] = (y * (255 // classes)).to(torch.uint8)
    rows = torch.randperm(n, generator=draw)
    transform = transform or Transform()
    return World(x[:n], y[:n], x[n:], y[n:], rows, torch.tensor(sizes), classes, transform, dtype)


def make_dataset(labels, classes=None) -> Dataset:
    """A data set of which only the labels matter."""
    y = torch.as_tensor(labels)
    x = torch.zeros(len(y), 1, 4, 4, dtype=torch.uint8)
    return Dataset("made", x, y, x[:1], y[:1], classes or int(y.max()) + 1, Transform())


def make_model(kind="cnn", world=None, dtype=torch.float64) -> Model:
    """cnn: convolution and linear; norm: with BatchNorm and dropout; linear: the head alone."""
    torch.manual_seed(3)
    channels, classes = (world.shape[0], world.classes) if world else (1, 4)
    body = {
        "cnn": [nn.Conv2d(channels, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()],
        "norm": [
            nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout2d(0.2),
            nn.Flatten(), nn.Dropout(0.3),
        ],
        "linear": [nn.Flatten()],
    }[kind]  # fmt: skip
    head = nn.Linear(64 if kind == "linear" else 36, classes)
    return Model(Classifier(nn.Sequential(*body), head).to(dtype))


def make_engine(model, world, local=None, engine="apart", workers=1, seed=0) -> Engine:
    hardware = Hardware(device="cpu", engine=engine, workers=str(workers))
    return Engine(model, world, local or Local(epochs=2, batch_size=8, lr=0.1), hardware, seed)


@pytest.fixture
def world() -> World:
    return make_world()
