"""The user's own pictures: ROOT/{train,test}/CLASS/*, or ROOT/train/CLIENT/CLASS/* for a natural partition.

Pictures are decoded once into a cache beside them (ROOT/.fedexp-*.pt), which is checked against the
folder's listing (names, sizes, times) and rebuilt when that has changed.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms.v2.functional import resize, rgb_to_grayscale

from fedexp.data.cache import cached
from fedexp.data.dataset import Dataset, Transform
from fedexp.errors import ConfigError, require

_PICTURES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp"}


def image_folder(root: str, transform: Transform, size: int | None = None, grey: bool = False) -> Dataset:
    """Read ROOT. `size` resizes to size x size (needed where pictures differ), `grey` keeps one channel.

    Raises ConfigError where a folder is missing or empty, a picture does not decode, or shapes differ.
    """
    base = Path(root).expanduser()
    for part in ("train", "test"):
        require((base / part).is_dir(), "dataset.root", root, f"has no folder {part}/ with a folder a class")
    train, test = _list(base / "train"), _list(base / "test")
    for part, files in (("train", train), ("test", test)):
        require(bool(files), "dataset.root", root, f"{part}/ holds no pictures in class folders")
    classes = sorted({file.parent.name for file in train})
    strange = sorted({file.parent.name for file in test} - set(classes))
    require(not strange, "dataset.root", root, f"test/ has classes that train/ lacks: {', '.join(strange)}")
    clients, owners = _owners(base / "train", train)
    images = decoded(base, train + test, size, grey)
    labels = torch.tensor([classes.index(file.parent.name) for file in train + test])
    n = len(train)
    return Dataset(
        base.name, images[:n], labels[:n], images[n:], labels[n:], len(classes), transform,
        owners if clients else None, classes,
    )  # fmt: skip


def _list(folder: Path) -> list[Path]:
    return sorted(
        Path(path, name)
        for path, _, names in os.walk(folder, followlinks=True)
        for name in names
        if Path(name).suffix.lower() in _PICTURES and Path(path) != folder
    )


def _owners(folder: Path, files: list[Path]) -> tuple[list[str], Tensor]:
    """Client names and each file's client, where the pictures lie two levels down; else no clients."""
    depths = {len(file.relative_to(folder).parts) for file in files}
    require(
        depths in ({2}, {3}), "dataset.root", folder,
        "pictures must all lie in train/CLASS/ or all in train/CLIENT/CLASS/",
    )  # fmt: skip
    if depths == {2}:
        return [], torch.empty(0)
    names = [file.relative_to(folder).parts[0] for file in files]
    clients = sorted(set(names))
    position = {name: index for index, name in enumerate(clients)}
    return clients, torch.tensor([position[name] for name in names])


def decoded(base: Path, files: list[Path], size: int | None, grey: bool) -> Tensor:
    """All pictures as uint8 [n, c, h, w], from the cache where it still agrees with the folder."""
    require(size is None or size >= 1, "dataset.size", size, "must be at least 1, or null")
    cache = base / f".fedexp-{size or 'asis'}-{'grey' if grey else 'colour'}-8bit.pt"
    return cached(cache, files, lambda: _decode(files, size, grey))


def _decode(files: list[Path], size: int | None, grey: bool) -> Tensor:
    mode = ImageReadMode.GRAY if grey else ImageReadMode.RGB

    def one(file: Path) -> Tensor:
        try:
            image = decode_image(str(file), mode=mode)
        except RuntimeError as error:
            raise ConfigError("dataset.root", file, f"does not decode as a picture ({error})") from error
        if image.dtype == torch.uint16:  # a PNG of 16 bits a channel; torch cannot shift uint16 itself
            image = (image.int() >> 8).to(torch.uint8)
        if grey and len(image) == 3:  # GIF and WebP decode to colours whatever the mode
            image = rgb_to_grayscale(image)
        return image if size is None else resize(image, [size, size], antialias=True)

    with ThreadPoolExecutor() as pool:
        images = list(pool.map(one, files))
    shapes = {tuple(image.shape) for image in images}
    require(
        len(shapes) == 1, "dataset.size", size,
        f"pictures have {len(shapes)} different shapes; pass dataset.size=SIDE to resize them all",
    )  # fmt: skip
    return torch.stack(images)
