"""Reading the output of LEAF's preprocess.sh (Caldas et al., "LEAF: A Benchmark for Federated Settings")."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedexp.errors import ConfigError, require
from fedexp.randomness import numpy_generator

User = dict[str, list[Any]]  # x and y
Users = dict[str, tuple[Path, User]]  # by a user's name: its file, and what it holds


def load(
    base: Path, what: str, place: str, number: int | None, more_than: int, purpose: str, seed: int,
    examples: Callable[[str, Path, User], tuple[np.ndarray, np.ndarray]],
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """The train x and y and test x and y of chosen users, and the user of each training example.

    what, place: as in `_read`; number, more_than, purpose, seed: as in `choose`, of train and test examples together;
    examples: the checked arrays x and y of a user, by its name and file. Users without training examples are left out.
    """
    parts = {part: _read(base / part, what, place) for part in ("train", "test")}
    trained = [name for name in parts["train"] if _count(parts["train"], name)]
    total = {name: sum(_count(part, name) for part in parts.values()) for name in trained}
    chosen = choose(total, number, more_than, purpose, seed, f"{what}s")
    tensors = []
    for part, users in parts.items():
        own = [examples(name, *users[name]) for name in chosen if _count(users, name)]
        require(bool(own), "dataset.root", base, f"the chosen {what}s have no {part} examples; split LEAF by sample")
        tensors += [torch.from_numpy(np.concatenate(each)) for each in zip(*own)]
    sizes = torch.tensor([_count(parts["train"], name) for name in chosen])
    return tensors, torch.arange(len(chosen)).repeat_interleave(sizes)


def _count(users: Users, name: str) -> int:
    return len(users[name][1]["y"]) if name in users else 0


def _read(folder: Path, what: str, place: str) -> Users:
    """The user_data of all files of a folder. what: the word for a user in errors; place: how to get such a folder.

    Raises ConfigError where there is no file, or one that is not LEAF's.
    """
    files = sorted(folder.glob("*.json"))
    require(bool(files), "dataset.root", folder, f"holds no *.json; {place}")
    users: Users = {}
    for file in files:
        try:
            found = json.loads(file.read_text())["user_data"]
            counts = {name: (len(user["x"]), len(user["y"])) for name, user in found.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError("dataset.root", file, f"is not a file of LEAF's ({error!r})") from error
        for name, (examples, labels) in counts.items():
            listed = all(isinstance(found[name][part], list) for part in ("x", "y"))
            require(listed, "dataset.root", file, f"{what} {name} has an x or y that is not a list")
            right = f"{what} {name} has {examples} examples but {labels} labels; each example needs one"
            require(examples == labels, "dataset.root", file, right)
            require(name not in users, "dataset.root", file, f"{what} {name} is in another file of {folder} too")
            users[name] = (file, found[name])
    return users


def choose(found: dict[str, int], number: int | None, more_than: int, purpose: str, seed: int, what: str) -> list[str]:
    """The sorted names of `number` users (None: all), drawn among those with more than `more_than` examples.

    found: number of examples of each user; purpose: names the random generator; what: the word for users in errors,
    which is also the name of the key.
    """
    able = sorted(name for name, count in found.items() if count > more_than)
    if number is None:
        require(bool(able), "dataset.more_than", more_than, f"none of {len(found)} {what} has more examples")
        return able
    require(
        1 <= number <= len(able), f"dataset.{what}", number,
        f"{len(able)} of {len(found)} {what} have more than dataset.more_than={more_than} examples",
    )  # fmt: skip
    return sorted(numpy_generator(seed, purpose).choice(able, number, replace=False).tolist())
