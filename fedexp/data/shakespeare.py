"""Shakespeare by speaking role (McMahan et al. 2017; Caldas et al., LEAF): predict the character after 80 others.

Read from LEAF's own output, ROOT/{train,test}/*.json, which the user puts there. A role in a play is a client.
"""

from pathlib import Path

import numpy as np

from fedexp.data import leaf
from fedexp.data.dataset import Dataset
from fedexp.data.transform import Transform
from fedexp.errors import require

# LEAF's vocabulary; a token is a character's place in it.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_TOKENS = {character: token for token, character in enumerate(CHARACTERS)}

_PLACE = (
    "run LEAF's data/shakespeare/preprocess.sh -s niid --sf 0.2 -k 0 -t sample and pass dataset.root=FOLDER with its "
    "train/ and test/"
)


def shakespeare(
    root: str, transform: Transform, roles: int | None = None, more_than: int = 0, selection_seed: int = 0
) -> Dataset:  # fmt: skip
    """`roles` (null: all) of those with more than `more_than` examples, train and test together; the test set pools
    the chosen roles' test examples. x: tokens int16 [n, 80]; y: the token that follows.

    Raises ConfigError where the folders are missing or hold something else.
    """
    require(roles is None or roles >= 1, "dataset.roles", roles, "must be at least 1, or null for all")
    base = Path(root).expanduser()
    there = (base / "train").is_dir() and (base / "test").is_dir()
    require(there, "dataset.root", root, f"has no train/ and test/; {_PLACE}")
    parts, owners = leaf.load(base, "role", _PLACE, roles, more_than, "shakespeare", selection_seed, _examples)
    train_x, train_y, test_x, test_y = parts
    return Dataset(
        "shakespeare", train_x, train_y, test_x, test_y, len(CHARACTERS), transform, owners,
        [repr(character)[1:-1] for character in CHARACTERS], base,
    )  # fmt: skip


def _examples(name: str, file: Path, user: leaf.User) -> tuple[np.ndarray, np.ndarray]:
    """A role's texts int16 [n, 80] and the tokens that follow them int64 [n]. Raises ConfigError for anything else."""
    texts, following = user["x"], user["y"]
    words = all(isinstance(text, str) for text in [*texts, *following])
    require(words, "dataset.root", file, f"role {name} has examples that are not text")
    fits = all(len(text) == 80 for text in texts) and all(len(text) == 1 for text in following)
    require(fits, "dataset.root", file, f"role {name} has texts that are not of 80 characters and one that follows")
    unknown = sorted(set("".join([*texts, *following])) - set(_TOKENS))
    require(not unknown, "dataset.root", file, f"role {name} has characters that LEAF does not know: {unknown}")
    tokens = np.array([[_TOKENS[character] for character in text] for text in texts], dtype=np.int16)
    return tokens, np.array([_TOKENS[character] for character in following], dtype=np.int64)
