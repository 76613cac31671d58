"""torchvision's data sets: small ones in their real formats, errors, and the real ones where they are."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from fedexp.data import Transform, vision
from fedexp.errors import ConfigError

REAL = Path(os.environ.get("FEDEXP_TEST_DATA", "data"))


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fmnist", "FashionMNIST")])
def test_idx_files(tmp_path, name, folder):
    images = np.arange(20 * 28 * 28).reshape(20, 28, 28) % 251
    for part in ("train", "t10k"):
        write_idx(tmp_path / folder / "raw" / f"{part}-images-idx3-ubyte", images)
        write_idx(tmp_path / folder / "raw" / f"{part}-labels-idx1-ubyte", np.arange(20) % 10)
    data = getattr(vision, name)(str(tmp_path), Transform(), download=False)
    assert data.train_x.shape == (20, 1, 28, 28)
    assert data.train_x.dtype == torch.uint8
    assert data.train_x[3, 0, 5, 7] == images[3, 5, 7]
    assert data.train_y.tolist() == (np.arange(20) % 10).tolist()
    assert data.classes == 10


@pytest.mark.parametrize("name", ["mnist", "fmnist", "cifar10", "cifar100", "cifar100_coarse", "svhn"])
def test_missing_files_say_where_to_put_them(tmp_path, name):
    with pytest.raises(ConfigError, match=rf"dataset\.root={tmp_path}.*{name}.*by hand at"):
        getattr(vision, name)(str(tmp_path), Transform(), download=False)


def test_coarse_labels_come_from_the_archive(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    with open(folder / "train", "wb") as file:
        pickle.dump({"coarse_labels": [3, 19, 0], "fine_labels": [1, 2, 3]}, file)
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    for root in (str(tmp_path), f"~/{tmp_path.name}"):
        assert vision._coarse_labels(root, "train").tolist() == [3, 19, 0]


@pytest.mark.skipif(not (REAL / "MNIST").is_dir(), reason="no real MNIST below FEDEXP_TEST_DATA (default: data/)")
def test_real_mnist():
    data = vision.mnist(str(REAL), Transform(), download=False)
    assert data.train_x.shape == (60000, 1, 28, 28)
    assert torch.bincount(data.train_y).min() == 5421
    assert abs(data.train_x.float().mean() / 255 - 0.1307) < 1e-4


@pytest.mark.skipif(not (REAL / "FashionMNIST").is_dir(), reason="no real Fashion-MNIST below FEDEXP_TEST_DATA")
def test_real_fmnist():
    data = vision.fmnist(str(REAL), Transform(), download=False)
    assert data.test_x.shape == (10000, 1, 28, 28)
    assert abs(data.train_x.float().mean() / 255 - 0.2860) < 1e-4
