"""torchvision's data sets: small ones in their real formats, errors, and the real ones where they are."""

import hashlib
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from program import run
from scipy.io import savemat
from torchvision import datasets

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


def leave_mnist(root, folder="MNIST", images=40, labels=40, test_images=40, highest=9):
    """Files of so many images and labels, the last training label being `highest`."""
    raw = root / folder / "raw"
    train_y = np.append(np.arange(labels - 1) % 10, highest)
    for part, count, y in (("train", images, train_y), ("t10k", test_images, np.arange(40) % 10)):
        write_idx(raw / f"{part}-images-idx3-ubyte", np.zeros((count, 28, 28)))
        write_idx(raw / f"{part}-labels-idx1-ubyte", y)
    return raw


SPOILT_MNIST = [
    ({"images": 100, "labels": 90}, "has 100 train examples but 90 train labels; each needs one"),
    ({"test_images": 41}, "has 41 test examples but 40 test labels; each needs one"),
    ({"highest": 77}, "train labels must be int64 from 0 to 9, for 10 classes; they are int64 from 0 to 77"),
]


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fmnist", "FashionMNIST")])
@pytest.mark.parametrize(("spoilt", "said"), SPOILT_MNIST, ids=str)
def test_idx_files_that_do_not_fit_one_another_are_refused(tmp_path, name, folder, spoilt, said):
    raw = leave_mnist(tmp_path, folder, **spoilt)
    with pytest.raises(ConfigError, match=f"^dataset={name}: {raw}: {said}"):
        getattr(vision, name)(str(tmp_path), Transform(), download=False)


def test_what_older_versions_of_torchvision_have_left_is_not_read(tmp_path):
    """torchvision would take it for the files, whatever it is."""
    raw = leave_mnist(tmp_path)
    (raw.parent / "processed").mkdir()
    other = (torch.ones(5, 28, 28, dtype=torch.uint8), torch.ones(5, dtype=torch.int64))
    for part in ("training", "test"):
        torch.save(other, raw.parent / "processed" / f"{part}.pt")
    assert vision.mnist(str(tmp_path), Transform(), download=False).train_x.shape == (40, 1, 28, 28)


@pytest.mark.parametrize(("spoilt", "said"), SPOILT_MNIST, ids=str)
def test_the_program_refuses_them_before_training(monkeypatch, capfd, tmp_path, spoilt, said):
    raw = leave_mnist(tmp_path / "data", **spoilt)
    words = ["dataset=mnist", f"dataset.root={tmp_path / 'data'}", "dataset.download=false", "partition=iid"]
    assert run(monkeypatch, tmp_path / "out", *words) == 2
    assert f"fedexp: dataset=mnist: {raw}: {said}" in capfd.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


def test_the_classes_are_the_data_sets_own(tmp_path):
    """Not as many as the labels happen to reach: a model of ten classes, whatever examples there are."""
    leave_mnist(tmp_path, labels=5, images=5, highest=0)
    assert vision.mnist(str(tmp_path), Transform(), download=False).classes == 10


@pytest.mark.parametrize("part", ["images-idx3", "labels-idx1"])
@pytest.mark.parametrize(
    "damage",
    [lambda whole: whole[:-7], lambda whole: whole[:3], lambda whole: b"\0" * len(whole), lambda whole: b"",
     lambda whole: b"text instead of numbers\n"],
)  # fmt: skip
def test_an_idx_file_that_is_cut_short_or_zeroed_is_refused(tmp_path, part, damage):
    file = leave_mnist(tmp_path) / f"train-{part}-ubyte"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ConfigError, match=rf"dataset\.root={tmp_path}: mnist can .*{file} is damaged: \w.*by hand"):
        vision.mnist(str(tmp_path), Transform(), download=False)


def test_a_damaged_file_is_found_below_the_users_home_folder(tmp_path, monkeypatch):
    file = leave_mnist(tmp_path / "there") / "t10k-labels-idx1-ubyte"
    file.write_bytes(b"")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"{file} is damaged: .*by hand at {file.parent}"):
        vision.mnist("~/there", Transform(), download=False)


def declared(file):
    """(name, md5), as torchvision lists what was published."""
    return [file.name, hashlib.md5(file.read_bytes()).hexdigest()]


def leave_cifar(root, monkeypatch, kind, images=6, labels=(0, 1, 2, 3, 4, 5), pixel=7):
    """Batches of torchvision's format, made the published ones."""
    folder = root / kind.base_folder
    folder.mkdir()
    key, names = ("labels", "label_names") if kind is datasets.CIFAR10 else ("fine_labels", "fine_label_names")
    for name, count, y in (("train", images, list(labels)), ("test", 4, [0, 1, 2, 3])):
        data = np.full((count, 3072), pixel, dtype=np.asarray(pixel).dtype if pixel != 7 else np.uint8)
        batch = {"data": data, key: y, "coarse_labels": [label % 20 for label in y]}
        (folder / name).write_bytes(pickle.dumps(batch))
        monkeypatch.setattr(kind, f"{name}_list", [declared(folder / name)])
    (folder / "meta").write_bytes(pickle.dumps({names: ["x"]}))
    meta = {"filename": "meta", "key": names, "md5": declared(folder / "meta")[1]}
    monkeypatch.setattr(kind, "meta", meta)
    return folder


@pytest.mark.parametrize(("name", "kind", "classes"), [
    ("cifar10", datasets.CIFAR10, 10), ("cifar100", datasets.CIFAR100, 100), ("cifar100_coarse", datasets.CIFAR100, 20),
])  # fmt: skip
def test_cifar_files(tmp_path, monkeypatch, name, kind, classes):
    folder = leave_cifar(tmp_path, monkeypatch, kind)
    data = getattr(vision, name)(str(tmp_path), Transform(), download=False)
    assert (tuple(data.train_x.shape), data.train_y.tolist(), data.classes) == ((6, 3, 32, 32), [*range(6)], classes)
    assert data.source == folder


@pytest.mark.parametrize(("spoilt", "said"), [
    ({"images": 7}, "has 7 train examples but 6 train labels"),
    ({"labels": (0, 1, 2, 3, 4, 100)}, "train labels must be int64 from 0 to .*; they are int64 from 0 to 100"),
    ({"labels": (0, 1, 2, 3, 4, 5.5)}, "labels must be integers, not float64"),
    ({"pixel": 55.5}, "images must be uint8, not torch.float64"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize(("name", "kind"), [("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)])
def test_cifar_files_that_do_not_fit_one_another_are_refused(tmp_path, monkeypatch, name, kind, spoilt, said):
    folder = leave_cifar(tmp_path, monkeypatch, kind, **spoilt)
    with pytest.raises(ConfigError, match=f"^dataset={name}: {folder}: {said}"):
        getattr(vision, name)(str(tmp_path), Transform(), download=False)


@pytest.mark.parametrize("name", ["train", "test"])
def test_a_cifar_file_that_is_not_the_published_one_is_named(tmp_path, monkeypatch, name):
    file = leave_cifar(tmp_path, monkeypatch, datasets.CIFAR10) / name
    file.write_bytes(file.read_bytes()[:3])
    with pytest.raises(ConfigError, match=rf"cifar10 can neither be .*{file} is damaged: "):
        vision.cifar10(str(tmp_path), Transform(), download=False)


def leave_svhn(root, monkeypatch, images=5, labels=(1, 2, 3, 4, 10), dtype=np.uint8):
    published = {}
    for part, count, y in (("train", images, labels), ("test", 3, (1, 2, 10))):
        file = root / f"{part}_32x32.mat"
        savemat(file, {"X": np.ones((32, 32, 3, count), dtype=dtype), "y": np.array(y, dtype=np.uint8)[:, None]})
        published[part] = ["no address", *declared(file)]
    monkeypatch.setattr(datasets.SVHN, "split_list", published)


def test_svhn_files(tmp_path, monkeypatch):
    leave_svhn(tmp_path, monkeypatch)
    data = vision.svhn(str(tmp_path), Transform(), download=False)
    assert (tuple(data.train_x.shape), data.train_y.tolist(), data.classes) == ((5, 3, 32, 32), [1, 2, 3, 4, 0], 10)


@pytest.mark.parametrize(("spoilt", "said"), [
    ({"images": 6}, "has 6 train examples but 5 train labels"),
    ({"labels": (1, 2, 3, 4, 11)}, "train labels must be int64 from 0 to 9.* from 1 to 11"),
    ({"dtype": np.float64}, "images must be uint8, not torch.float64"),
], ids=str)  # fmt: skip
def test_svhn_files_that_do_not_fit_one_another_are_refused(tmp_path, monkeypatch, spoilt, said):
    leave_svhn(tmp_path, monkeypatch, **spoilt)
    with pytest.raises(ConfigError, match=f"^dataset=svhn: {tmp_path}: {said}"):
        vision.svhn(str(tmp_path), Transform(), download=False)


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
