"""FEMNIST: handwritten characters by writer (Caldas et al., LEAF), 62 classes, 1x28x28.

Read from LEAF's own output, ROOT/{train,test}/*.json, or, if that is missing and the extra [femnist] is
installed, from the Hugging Face hub. FedCat uses 180 writers with more than 100 examples each. LEAF seeds their draw
by the clock, so the paper's writers cannot be drawn again: here they are drawn by a seed of their own.
"""

import string
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedexp.data import leaf
from fedexp.data.dataset import Dataset
from fedexp.data.transform import Transform
from fedexp.errors import ConfigError, require
from fedexp.randomness import numpy_generator

CLASSES = [*string.digits, *string.ascii_uppercase, *string.ascii_lowercase]

# FedCat's command has --sf 0.05, which leaves about 180 writers, sometimes fewer; twice that share leaves enough.
_PLACE = (
    "run LEAF's data/femnist/preprocess.sh -s niid --sf 0.1 -k 100 -t sample and pass dataset.root=FOLDER with its "
    "train/ and test/"
)


def femnist(
    root: str, transform: Transform, writers: int | None = 180, more_than: int = 100, selection_seed: int = 0,
    download: bool = True, repository: str = "flwrlabs/femnist", test_fraction: float = 0.1,
) -> Dataset:  # fmt: skip
    """`writers` (null: all) of those with more than `more_than` examples, train and test together.

    From the hub each writer's examples are split by test_fraction; LEAF's output is split already. The test set
    pools the chosen writers' test examples.
    """
    require(writers is None or writers >= 1, "dataset.writers", writers, "must be at least 1, or null for all")
    require(0 < test_fraction < 1, "dataset.test_fraction", test_fraction, "must be between 0 and 1")
    base = Path(root).expanduser()
    if (base / "train").is_dir() and (base / "test").is_dir():
        source: str | Path = base
        parts, owners = leaf.load(base, "writer", _PLACE, writers, more_than, "femnist", selection_seed, _examples)
    else:
        require(download, "dataset.root", root, f"has no train/ and test/ of LEAF; {_PLACE}, or dataset.download=true")
        source = repository
        parts, owners = _from_hub(repository, root, writers, more_than, selection_seed, test_fraction)
    train_x, train_y, test_x, test_y = parts
    return Dataset("femnist", train_x, train_y, test_x, test_y, len(CLASSES), transform, owners, CLASSES, source)


femnist.known = False  # type: ignore[attr-defined]  # LEAF draws by the clock: each of its folders holds other data


def _examples(name: str, file: Path, user: leaf.User) -> tuple[np.ndarray, np.ndarray]:
    """A writer's images uint8 [n, 1, 28, 28] and labels int64 [n]. Raises ConfigError for values that would be lost in
    a cast."""
    try:
        pixels, labels = np.array(user["x"]), np.array(user["y"])
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError("dataset.root", file, f"writer {name} has examples that are not numbers ({error})") from error
    require(pixels.dtype.kind in "fi", "dataset.root", file, f"writer {name} has examples that are not numbers")
    pixels, found = pixels.astype(np.float32), list(pixels.shape)
    require(found == [len(labels), 784], "dataset.root", file, f"writer {name} has examples {found}, not [n, 784]")
    right = f"writer {name} has greys from {pixels.min()} to {pixels.max()}; they must be in [0, 1]"
    require(bool(((pixels >= 0) & (pixels <= 1)).all()), "dataset.root", file, right)
    right = f"writer {name} has labels that are {labels.dtype} {list(labels.shape)}; they must be integers, one each"
    require(labels.dtype.kind == "i" and labels.ndim == 1, "dataset.root", file, right)
    # LEAF divides 8-bit greys by 255: this restores them exactly.
    return np.rint(pixels * 255).astype(np.uint8).reshape(-1, 1, 28, 28), labels


def _from_hub(
    repository: str, root: str, writers: int | None, more_than: int, seed: int, test_fraction: float
) -> tuple[list[Tensor], Tensor]:
    """What leaf.load returns, through the library `datasets` (columns image, writer_id, character)."""
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            "dataset.root", root, f"has no train/ and test/ of LEAF; {_PLACE}, or install the extra: fedexp[femnist]"
        ) from error
    try:
        cache = str(Path(root).expanduser() / ".huggingface")
        every = datasets.load_dataset(repository, split="train", cache_dir=cache)
    except Exception as error:  # the library raises many kinds: no network, no such repository, torn files
        reason = f"could not be downloaded ({error}); or {_PLACE}"
        raise ConfigError("dataset.repository", repository, reason) from error
    names = np.array(every["writer_id"])
    counts = dict(zip(*np.unique(names, return_counts=True)))
    chosen = leaf.choose(counts, writers, more_than, "femnist", seed, "writers")
    train, test = [], []
    for owner, name in enumerate(chosen):
        own = numpy_generator(seed, "femnist split", owner).permutation(np.flatnonzero(names == name))
        cut = max(1, round(test_fraction * len(own)))
        train.append(own[cut:])
        test.append(own[:cut])
    tensors = []
    for rows in (train, test):
        some = every.select(np.concatenate(rows).tolist())
        x = np.stack([np.asarray(image.convert("L")) for image in some["image"]])[:, None]
        tensors += [torch.from_numpy(x), torch.tensor(some["character"])]
    sizes = torch.tensor([len(own) for own in train])
    return tensors, torch.arange(len(chosen)).repeat_interleave(sizes)
