"""FEMNIST: handwritten characters by writer (Caldas et al., LEAF), 62 classes, 1x28x28.

Read from LEAF's own output, ROOT/{train,test}/*.json, or, where that is not there and the extra [femnist] is
installed, from the Hugging Face hub. FedCat uses 180 writers of more than 100 examples each; LEAF draws them by the
clock, so that exactly its writers cannot be had again: here they are drawn by a seed of their own.
"""

import json
import string
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedexp.data.dataset import Dataset, Transform
from fedexp.errors import ConfigError, require
from fedexp.randomness import numpy_generator

CLASSES = [*string.digits, *string.ascii_uppercase, *string.ascii_lowercase]

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
        parts = _from_leaf(base, writers, more_than, selection_seed)
    else:
        require(download, "dataset.root", root, f"has no train/ and test/ of LEAF; {_PLACE}, or dataset.download=true")
        parts = _from_hub(repository, root, writers, more_than, selection_seed, test_fraction)
    (train_x, train_y, owners), (test_x, test_y, _) = parts
    require(len(test_y) > 0, "dataset.root", root, "the chosen writers have no test examples; split LEAF by sample")
    return Dataset("femnist", train_x, train_y, test_x, test_y, len(CLASSES), transform, owners, CLASSES)


def choose(counts: dict[str, int], writers: int | None, more_than: int, seed: int) -> list[str]:
    """The names of the writers drawn, sorted."""
    able = sorted(name for name, count in counts.items() if count > more_than)
    if writers is None:
        require(bool(able), "dataset.more_than", more_than, f"none of {len(counts)} writers has more examples")
        return able
    require(
        1 <= writers <= len(able), "dataset.writers", writers,
        f"{len(able)} of {len(counts)} writers have more than dataset.more_than={more_than} examples",
    )  # fmt: skip
    return sorted(numpy_generator(seed, "femnist").choice(able, writers, replace=False).tolist())


def _from_leaf(base: Path, writers: int | None, more_than: int, seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(x, y, owners) for train and for test."""
    held = [_read(base / part) for part in ("train", "test")]
    counts = {name: sum(len(part[name]["y"]) for part in held if name in part) for name in held[0]}
    chosen = choose(counts, writers, more_than, seed)
    parts = []
    for part in held:
        own = [part.get(name, {"x": [], "y": []}) for name in chosen]
        pixels = np.array([row for each in own for row in each["x"]], dtype=np.float32).reshape(-1, 1, 28, 28)
        labels = [label for each in own for label in each["y"]]
        owners = np.repeat(np.arange(len(own)), [len(each["y"]) for each in own])
        # LEAF divides 8-bit greys by 255: this gives them back exactly.
        x = torch.from_numpy(np.rint(pixels * 255).astype(np.uint8))
        parts.append((x, torch.tensor(labels, dtype=torch.int64), torch.from_numpy(owners)))
    return parts


def _read(folder: Path) -> dict[str, dict[str, list]]:
    """LEAF's user_data of all files of a folder: {writer: {x: [[784 greys in [0, 1]]], y: [labels]}}."""
    files = sorted(folder.glob("*.json"))
    require(bool(files), "dataset.root", folder, f"holds no *.json; {_PLACE}")
    users: dict[str, dict[str, list]] = {}
    for file in files:
        try:
            users.update(json.loads(file.read_text())["user_data"])
        except (ValueError, KeyError) as error:
            raise ConfigError("dataset.root", file, f"is no file of LEAF's ({error!r})") from error
    return users


def _from_hub(
    repository: str, root: str, writers: int | None, more_than: int, seed: int, test_fraction: float
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The same through the library `datasets` (columns image, writer_id, character)."""
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
    chosen = choose(dict(zip(*np.unique(names, return_counts=True))), writers, more_than, seed)
    rows: list[list[int]] = [[], []]
    owners: list[list[int]] = [[], []]
    for owner, name in enumerate(chosen):
        own = numpy_generator(seed, "femnist split", owner).permutation(np.flatnonzero(names == name))
        cut = max(1, round(test_fraction * len(own)))
        for part, ids in enumerate((own[cut:], own[:cut])):
            rows[part].extend(ids.tolist())
            owners[part].extend([owner] * len(ids))
    parts = []
    for ids, own in zip(rows, owners):
        some = every.select(ids)
        x = np.stack([np.asarray(image.convert("L")) for image in some["image"]])[:, None]
        parts.append((torch.from_numpy(x), torch.tensor(some["character"]), torch.tensor(own)))
    return parts
