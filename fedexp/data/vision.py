"""MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100 (fine and coarse) and SVHN, read by torchvision."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets

from fedexp.data.dataset import Dataset, Transform
from fedexp.errors import ConfigError

# Where each one's files are expected below dataset.root: told to a user who must place them by hand.
_FILES = {
    "MNIST": "MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte",
    "FashionMNIST": "FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte",
    "CIFAR10": "cifar-10-batches-py/ (cifar-10-python.tar.gz, unpacked)",
    "CIFAR100": "cifar-100-python/ (cifar-100-python.tar.gz, unpacked)",
    "SVHN": "{train,test}_32x32.mat",
}


def mnist(root: str, transform: Transform, download: bool = True) -> Dataset:
    """MNIST: 60,000 + 10,000 images of 1x28x28 (LeCun et al. 1998)."""
    return _load("mnist", datasets.MNIST, root, download, transform)


def fmnist(root: str, transform: Transform, download: bool = True) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 images of 1x28x28 (Xiao et al. 2017)."""
    return _load("fmnist", datasets.FashionMNIST, root, download, transform)


def cifar10(root: str, transform: Transform, download: bool = True) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 images of 3x32x32 (Krizhevsky 2009)."""
    return _load("cifar10", datasets.CIFAR10, root, download, transform)


def cifar100(root: str, transform: Transform, download: bool = True) -> Dataset:
    """CIFAR-100 with its 100 fine labels."""
    return _load("cifar100", datasets.CIFAR100, root, download, transform)


def cifar100_coarse(root: str, transform: Transform, download: bool = True) -> Dataset:
    """CIFAR-100 with its 20 super-classes: torchvision reads the images, the archive holds the labels."""
    fine = _load("cifar100_coarse", datasets.CIFAR100, root, download, transform)
    train_y, test_y = (_coarse_labels(root, part) for part in ("train", "test"))
    return Dataset(fine.name, fine.train_x, train_y, fine.test_x, test_y, 20, transform)


def svhn(root: str, transform: Transform, download: bool = True) -> Dataset:
    """SVHN: 73,257 + 26,032 house-number digits of 3x32x32 (Netzer et al. 2011)."""
    return _load("svhn", datasets.SVHN, root, download, transform)


def _load(name: str, kind: Callable[..., Any], root: str, download: bool, transform: Transform) -> Dataset:
    part = (
        (lambda train: {"split": "train" if train else "test"}) if name == "svhn" else (lambda train: {"train": train})
    )
    try:
        train, test = (kind(root, **part(is_train), download=download) for is_train in (True, False))
    except (RuntimeError, URLError, OSError) as error:
        raise ConfigError(
            "dataset.root",
            root,
            f"{name} is neither there nor could it be downloaded ({error}). Place its files by hand at "
            f"{Path(root) / _FILES[kind.__name__]}, or pass dataset.root=FOLDER that holds them",
        ) from error
    train_x, train_y = _tensors(train)
    test_x, test_y = _tensors(test)
    return Dataset(name, train_x, train_y, test_x, test_y, int(train_y.max()) + 1, transform)


def _tensors(dataset: Any) -> tuple[Tensor, Tensor]:
    """Images as uint8 [n, c, h, w], labels as int64 [n], from what torchvision holds."""
    images = torch.as_tensor(np.asarray(dataset.data))
    labels = getattr(dataset, "targets", None)
    labels = torch.as_tensor(np.asarray(dataset.labels if labels is None else labels)).long()
    if images.dim() == 3:
        images = images.unsqueeze(1)
    elif images.shape[-1] == 3:
        images = images.permute(0, 3, 1, 2)
    return images.contiguous(), labels


def _coarse_labels(root: str, part: str) -> Tensor:
    with open(Path(root).expanduser() / "cifar-100-python" / part, "rb") as file:  # torchvision has checked its md5
        return torch.tensor(pickle.load(file, encoding="latin1")["coarse_labels"])
