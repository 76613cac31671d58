"""The user's own pictures: ROOT/{train,test}/CLASS/*, or ROOT/train/CLIENT/CLASS/* for a natural partition.

Pictures are decoded once into a cache beside them (ROOT/.fedexp-*.pt), which is checked against the
folder's listing (names, sizes, times) and rebuilt when that has changed.
"""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedexp.data.cache import cached
from fedexp.data.dataset import Dataset
from fedexp.data.transform import Transform
from fedexp.errors import ConfigError, require

log = logging.getLogger(__name__)

_PICTURES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
_MOST_PIXELS = 50_000_000
Image.MAX_IMAGE_PIXELS = None  # Pillow's own limit: max_pixels is checked instead


def image_folder(
    root: str, transform: Transform, size: int | None = None, grey: bool = False, max_pixels: int = _MOST_PIXELS
) -> Dataset:  # fmt: skip
    """Read ROOT. `size` resizes to size x size (needed where pictures differ), `grey` keeps one channel, `max_pixels`
    is the most pixels that a picture may have: even a small file can decode to more than fits into memory.

    Raises ConfigError where a folder is missing or empty, a picture does not decode, or shapes differ.
    """
    require(max_pixels >= 1, "dataset.max_pixels", max_pixels, "must be at least 1")
    base = Path(root).expanduser()
    train, test = (_pictures(root, base / part) for part in ("train", "test"))
    classes = sorted({file.parent.name for file in train})
    strange = sorted({file.parent.name for file in test} - set(classes))
    require(not strange, "dataset.root", root, f"test/ has classes that train/ lacks: {', '.join(strange)}")
    owners = _owners(base / "train", train)
    images = decoded(base, train + test, size, grey, max_pixels)
    labels = torch.tensor([classes.index(file.parent.name) for file in train + test])
    n = len(train)
    name = Path(os.path.abspath(base)).name  # of "." too
    return Dataset(name, images[:n], labels[:n], images[n:], labels[n:], len(classes), transform, owners, classes, root)


_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cifar10_jpeg(root: str, transform: Transform) -> Dataset:
    """CIFAR-10 as a folder of pictures, in any place. Raises ConfigError for a folder that holds something else."""
    found = image_folder(root, transform)
    shape = tuple(found.train_x.shape[1:])
    require(
        tuple(found.class_names) == _CIFAR10 and shape == (3, 32, 32), "dataset.root", root,
        f"must hold CIFAR-10: 3x32x32 pictures of {', '.join(_CIFAR10)}",
    )  # fmt: skip
    return found


cifar10_jpeg.known = True  # type: ignore[attr-defined]  # its folder is not part of a run's name


def _pictures(root: str, folder: Path) -> list[Path]:
    try:
        there = folder.is_dir()
    except OSError as error:
        _refuse(error)
    require(there, "dataset.root", root, f"has no folder {folder.name}/ with a folder for each class")
    files = sorted(
        Path(path, name)
        for path, _, names in os.walk(folder, onerror=_refuse, followlinks=True)
        for name in names
        if not any(part.startswith(".") for part in Path(path, name).relative_to(folder).parts)
    )
    found = [file for file in files if file.parent != folder and file.suffix.lower() in _PICTURES]
    require(bool(found), "dataset.root", root, f"{folder.name}/ holds no pictures in class folders")
    for file in map(str, found):
        right = "has a name that is no text in UTF-8; rename it"
        require(file.encode(errors="ignore").decode() == file, "dataset.root", ascii(file), right)
    if others := sorted({*files} - {*found}):
        kinds = sorted({file.name if file.parent == folder else file.suffix or file.name for file in others})
        right = "are no pictures in class folders, and left out"
        log.warning("dataset.root=%s: %d files %s: %s", folder, len(others), right, ", ".join(kinds))
    return found


def _refuse(error: OSError) -> NoReturn:
    """Raise ConfigError for a folder that cannot be listed. Left out, its classes or clients would be missing."""
    raise ConfigError("dataset.root", error.filename, f"cannot be read ({error.strerror})") from error


def _owners(folder: Path, files: list[Path]) -> Tensor | None:
    """Each file's client, the clients being numbered by name, if the pictures lie two levels down."""
    depths = {len(file.relative_to(folder).parts) for file in files}
    require(
        depths in ({2}, {3}), "dataset.root", folder,
        "pictures must all lie in train/CLASS/ or all in train/CLIENT/CLASS/",
    )  # fmt: skip
    if depths == {2}:
        return None
    names = [file.relative_to(folder).parts[0] for file in files]
    return torch.from_numpy(np.unique(names, return_inverse=True)[1])


def decoded(base: Path, files: list[Path], size: int | None, grey: bool, max_pixels: int = _MOST_PIXELS) -> Tensor:
    """All pictures as uint8 [n, c, h, w], from the cache if it still agrees with the folder."""
    require(size is None or size >= 1, "dataset.size", size, "must be at least 1, or null")
    cache = base / f".fedexp-{size or 'asis'}-{'grey' if grey else 'colour'}-scaled.pt"
    return cached(cache, files, lambda: _decode(files, size, grey, max_pixels))


def _decode(files: list[Path], size: int | None, grey: bool, max_pixels: int) -> Tensor:
    mode = "L" if grey else "RGB"
    with ThreadPoolExecutor() as pool:
        images = list(pool.map(lambda file: _read(file, size, mode, max_pixels), files))
    first = images[0].shape
    other = next((number for number, image in enumerate(images) if image.shape != first), 0)
    require(
        other == 0, "dataset.size", size,
        f"pictures have different shapes, {_sides(first)} in {files[0]} and {_sides(images[other].shape)} in "
        f"{files[other]}; pass dataset.size=SIDE to resize them all",
    )  # fmt: skip
    return torch.stack(images)


def _read(file: Path, size: int | None, mode: str, max_pixels: int) -> Tensor:
    """A picture uint8 [c, h, w], or resized [c, size, size]. Raises ConfigError for one that is damaged or too large;
    before decoding it, if its file shows that: a PNG has checksums."""
    from torchvision.transforms.v2.functional import pil_to_tensor, resize

    try:
        with Image.open(file) as image:
            width, height = image.size
            require(
                width * height <= max_pixels, "dataset.root", file,
                f"has {width} x {height} pixels; at most {max_pixels} are read (dataset.max_pixels)",
            )  # fmt: skip
            wide = image.mode == "F" or (image.mode == "I" and image.format != "PNG")  # a PNG has at most 16 bits
            right = "has 32 bits per pixel and colour, whose scale is unknown; store it with 8 or 16"
            require(not wide, "dataset.root", file, right)
            image.verify()
        with Image.open(file) as image:
            image.draft(mode, image.size)  # a JPEG stores grey separately from colour
            deep = image.mode.startswith("I")  # 16 bits, of which Pillow would keep the lower eight
            shallow = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8)) if deep else image
            found = pil_to_tensor(shallow.convert(mode)).contiguous()
    except ConfigError:
        raise
    except Exception as error:  # decoders raise many kinds
        reason = f"does not decode as a picture ({str(error) or type(error).__name__})"
        raise ConfigError("dataset.root", file, reason) from error
    return found if size is None else resize(found, [size, size], antialias=True)


def _sides(shape: torch.Size) -> str:
    return f"{shape[2]} x {shape[1]}"
