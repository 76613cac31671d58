"""Tiny-ImageNet (Stanford's CS231n): 200 classes of 500 training images; its validation set is used as the test set."""

from pathlib import Path
from urllib.error import URLError
from zipfile import BadZipFile

import torch

from fedexp.data.archive import unpack
from fedexp.data.dataset import Dataset
from fedexp.data.image_folder import decoded
from fedexp.data.transform import Transform
from fedexp.errors import ConfigError, require

_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"


def tiny_imagenet(root: str, transform: Transform, download: bool = True, size: int | None = None) -> Dataset:
    """Read ROOT/tiny-imagenet-200/, downloaded if it is missing; decoded once into a cache beside the pictures.

    size: resize to size x size (FedConcat: 32).
    """
    base = Path(root).expanduser() / "tiny-imagenet-200"
    if download and not base.is_dir():
        _download(base)
    listing = base / "val" / "val_annotations.txt"
    require(
        (base / "train").is_dir() and listing.is_file(), "dataset.root", root,
        f"no tiny-imagenet-200/ there with train/ and val/val_annotations.txt; unpack {_URL} into it",
    )  # fmt: skip
    train = sorted((base / "train").glob("[!.]*/images/*.JPEG"))
    folders = (each.name for each in (base / "train").iterdir() if each.is_dir())
    classes = sorted(name for name in folders if not name.startswith("."))
    empty = sorted({*classes} - {file.parent.parent.name for file in train})
    require(not empty, "dataset.root", root, f"train/ has no pictures CLASS/images/*.JPEG of {', '.join(empty)}")
    number = {name: label for label, name in enumerate(classes)}
    rows = _read(listing, number)
    test = [base / "val" / "images" / name for name, _ in rows]
    images = decoded(base, [*train, *test], size, grey=False)
    train_y = torch.tensor([number[file.parent.parent.name] for file in train])
    test_y = torch.tensor([label for _, label in rows])
    n = len(train)
    return Dataset(
        "tiny_imagenet", images[:n], train_y, images[n:], test_y, len(classes), transform, None, classes, base
    )


def _read(listing: Path, number: dict[str, int]) -> list[tuple[str, int]]:
    """(picture, label) of each line of val_annotations.txt, which must list every existing picture exactly once."""
    try:
        rows = [line.split("\t")[:2] for line in listing.read_text().splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("dataset.root", listing, f"cannot be read ({error})") from error
    wrong = next((row for row in rows if len(row) < 2 or row[1] not in number), None)
    require(wrong is None, "dataset.root", listing, f"has a line {wrong}; each must be PICTURE<tab>CLASS")
    listed = sorted(name for name, _ in rows)
    there = sorted(file.name for file in (listing.parent / "images").glob("*.JPEG"))
    require(
        listed == there, "dataset.root", listing,
        f"lists {len(listed)} pictures, images/ beside it holds {len(there)}; it must list each of them once",
    )  # fmt: skip
    return [(name, number[word]) for name, word in rows]


def _download(base: Path) -> None:
    from torchvision.datasets.utils import download_url

    folder = base.parent
    try:
        download_url(_URL, str(folder), md5=_MD5)
        unpack(folder / Path(_URL).name, base)
    except (RuntimeError, URLError, OSError, BadZipFile) as error:
        raise ConfigError(
            "dataset.root", folder,
            f"tiny_imagenet is not there and could not be downloaded ({error}); unpack {_URL} into it",
        ) from error  # fmt: skip
