"""MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100 (fine and coarse) and SVHN, read by torchvision.

Each function reads a data set from the folder `root`, and downloads it into there first if it is missing and `download`
is true. It raises ConfigError, with the files that must be there, where neither works.
"""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import torch
from torch import Tensor

from fedexp.data.dataset import Dataset
from fedexp.data.transform import Transform
from fedexp.errors import ConfigError, require

# Each data set's folder below dataset.root, and its files: shown to a user who must place them by hand.
_IDX = "{train,t10k}-{images-idx3,labels-idx1}-ubyte"
_FILES = {
    "MNIST": ("MNIST/raw", _IDX),
    "FashionMNIST": ("FashionMNIST/raw", _IDX),
    "CIFAR10": ("cifar-10-batches-py", " (cifar-10-python.tar.gz, unpacked)"),
    "CIFAR100": ("cifar-100-python", " (cifar-100-python.tar.gz, unpacked)"),
    "SVHN": ("", "{train,test}_32x32.mat"),
}
# What torchvision may raise for files that are missing, cannot be downloaded or are not in their format.
_FAILURES = (RuntimeError, URLError, OSError, ValueError, TypeError, LookupError, AssertionError, EOFError)


def mnist(root: str, transform: Transform, download: bool = True) -> Dataset:
    """MNIST: 60,000 + 10,000 images of 1x28x28 (LeCun et al. 1998)."""
    return _load("mnist", "MNIST", 10, root, download, transform)


def fmnist(root: str, transform: Transform, download: bool = True) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 images of 1x28x28 (Xiao et al. 2017)."""
    return _load("fmnist", "FashionMNIST", 10, root, download, transform)


def cifar10(root: str, transform: Transform, download: bool = True) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 images of 3x32x32 (Krizhevsky 2009)."""
    return _load("cifar10", "CIFAR10", 10, root, download, transform)


def cifar100(root: str, transform: Transform, download: bool = True) -> Dataset:
    """CIFAR-100 with its 100 fine labels."""
    return _load("cifar100", "CIFAR100", 100, root, download, transform)


def cifar100_coarse(root: str, transform: Transform, download: bool = True) -> Dataset:
    """CIFAR-100 with its 20 super-classes: torchvision reads the images, the labels are read from the archive."""
    fine = _load("cifar100_coarse", "CIFAR100", 100, root, download, transform)
    train_y, test_y = (_coarse_labels(root, part) for part in ("train", "test"))
    return replace(fine, train_y=train_y, test_y=test_y, classes=20)


def svhn(root: str, transform: Transform, download: bool = True) -> Dataset:
    """SVHN: 73,257 + 26,032 house-number digits of 3x32x32 (Netzer et al. 2011)."""
    return _load("svhn", "SVHN", 10, root, download, transform)


def _load(
    name: str, kind: str, classes: int, root: str, download: bool, transform: Transform
) -> Dataset:  # fmt: skip
    """kind: the name of torchvision's class."""
    from torchvision import datasets

    # Otherwise torchvision prefers a folder processed/ of its versions before 0.9 to the files, and does not check it.
    reader = type(kind, (getattr(datasets, kind),), {"_check_legacy_exist": lambda self: False})
    below, files = _FILES[kind]
    folder = Path(root).expanduser() / below
    parts = ("train", "test") if kind == "SVHN" else (True, False)
    try:
        train, test = (reader(root, part, download=download) for part in parts)
    except _FAILURES as error:
        wrong = _wrong_file(kind, folder)
        reason = f"{wrong} {'is damaged' if wrong.exists() else 'is not there'}: " if wrong else ""
        raise ConfigError(
            "dataset.root", root,
            f"{name} can neither be read there nor downloaded ({reason}{str(error) or type(error).__name__}). Place "
            f"its files by hand at {folder}/{files}, or pass dataset.root=FOLDER that holds them",
        ) from error  # fmt: skip
    (train_x, train_y), (test_x, test_y) = (_tensors(name, folder, each) for each in (train, test))
    return Dataset(name, train_x, train_y, test_x, test_y, classes, transform, source=folder)


def _wrong_file(kind: str, folder: Path) -> Path | None:
    """The first of a data set's files that is missing or damaged: torchvision does not say which."""
    from torchvision import datasets
    from torchvision.datasets.utils import check_integrity

    if kind in ("MNIST", "FashionMNIST"):
        parts = [f"{part}-{content}-ubyte" for part in ("train", "t10k") for content in ("images-idx3", "labels-idx1")]
        return next((folder / part for part in parts if not _is_idx(folder / part)), None)
    reader = getattr(datasets, kind)
    published = [each[-2:] for each in getattr(reader, "split_list", {}).values()]  # (name, md5) of each file
    for each in ("train_list", "test_list"):
        published += getattr(reader, each, [])
    return next((folder / file for file, md5 in published if not check_integrity(str(folder / file), md5)), None)


def _is_idx(file: Path) -> bool:
    """Whether a file holds bytes, as many as its header says."""
    from torchvision.datasets.mnist import read_sn3_pascalvincent_tensor

    try:
        return read_sn3_pascalvincent_tensor(str(file)).dtype == torch.uint8
    except _FAILURES:
        return False


def _tensors(name: str, folder: Path, dataset: Any) -> tuple[Tensor, Tensor]:
    """Images as uint8 [n, c, h, w], labels as int64 [n], from what torchvision holds."""
    images = torch.as_tensor(np.asarray(dataset.data))
    labels = np.asarray(dataset.labels if name == "svhn" else dataset.targets)
    right = f"{folder}: images must be uint8, not {images.dtype}"
    require(images.dtype == torch.uint8, "dataset", name, right)
    right = f"{folder}: labels must be integers, not {labels.dtype}"
    require(labels.dtype.kind in "iu", "dataset", name, right)
    if images.dim() == 3:
        images = images.unsqueeze(1)
    elif images.shape[-1] == 3:
        images = images.permute(0, 3, 1, 2)
    return images.contiguous(), torch.as_tensor(labels).long()


def _coarse_labels(root: str, part: str) -> Tensor:
    with open(Path(root).expanduser() / "cifar-100-python" / part, "rb") as file:  # torchvision has checked its md5
        return torch.tensor(pickle.load(file, encoding="latin1")["coarse_labels"])
