"""Shakespeare: LEAF's folder, roles as clients, what is no such text, a run from files to accuracy."""

import json

import pytest
import torch
from program import result, run

from fedexp.data import Transform
from fedexp.data.shakespeare import CHARACTERS, shakespeare
from fedexp.errors import ConfigError
from fedexp.partition.natural import natural

TEXT = "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer The slings and arrows? "
ROLES = {"HAMLET": 9, "OPHELIA": 4, "KING_CLAUDIUS": 6}


def line(role, row):
    """80 characters of the soliloquy from another place for each role and row, and the one that follows."""
    start = (7 * sorted(ROLES).index(role) + row) % 20
    return TEXT[start : start + 80], TEXT[start + 80]


def write(root, roles=ROLES, test=2, change=lambda data: data):
    for part in ("train", "test"):
        (root / part).mkdir(parents=True)
        for number, name in enumerate(roles):
            rows = [line(name, row) for row in range(roles[name] if part == "train" else test)]
            user = change({"x": [x for x, _ in rows], "y": [y for _, y in rows]})
            content = {"users": [name], "num_samples": [len(rows)], "user_data": {name: user}}
            (root / part / f"all_data_{number}_{part}.json").write_text(json.dumps(content))
    return root


def test_reads_leaf_s_folder_exactly(tmp_path):
    data = shakespeare(str(write(tmp_path)), Transform())
    assert (data.classes, len(CHARACTERS), len(data.class_names)) == (80, 80, 80)
    assert data.train_x.shape == (19, 80) and data.train_x.dtype == torch.int16
    expected = [line(name, row) for name in sorted(ROLES) for row in range(ROLES[name])]
    assert ["".join(CHARACTERS[token] for token in row) for row in data.train_x.tolist()] == [x for x, _ in expected]
    assert [CHARACTERS[token] for token in data.train_y.tolist()] == [y for _, y in expected]
    assert data.owners.tolist() == [0] * 9 + [1] * 6 + [2] * 4  # HAMLET, KING_CLAUDIUS, OPHELIA
    assert len(data.test_y) == 6 and data.test_x[2].tolist() == data.train_x[9].tolist()
    assert [len(part) for part in natural(data, 3, 0)] == [9, 6, 4]


def test_roles_are_chosen_by_size_and_by_a_seed(tmp_path):
    root = str(write(tmp_path))
    assert shakespeare(root, Transform(), more_than=7).owners.tolist() == [0] * 9 + [1] * 6
    chosen = {tuple(shakespeare(root, Transform(), roles=2, selection_seed=seed).owners.tolist()) for seed in range(8)}
    assert len(chosen) > 1
    with pytest.raises(ConfigError, match=r"dataset\.roles=4: 3 of 3 roles have more than dataset\.more_than=0"):
        shakespeare(root, Transform(), roles=4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda user: {**user, "x": [x[:-1] for x in user["x"]]},
            "has texts that are not of 80 characters and one",
        ),
        (lambda user: {**user, "y": ["ab" for _ in user["y"]]}, "has texts that are not of 80 characters and one"),
        (lambda user: {**user, "y": ["é" for _ in user["y"]]}, "has characters that LEAF does not know: ['é']"),
        (lambda user: {**user, "y": [3 for _ in user["y"]]}, "has examples that are not text"),
        (lambda user: {**user, "y": user["y"][1:]}, "role HAMLET has 9 examples but 8 labels"),
    ],
)
def test_what_is_no_such_text_is_refused_by_file_and_role(tmp_path, change, said):
    with pytest.raises(ConfigError) as error:
        shakespeare(str(write(tmp_path, change=change)), Transform())
    assert said in str(error.value) and "HAMLET" in str(error.value) and "all_data_0_train.json" in str(error.value)


def test_missing_folders_say_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"dataset\.root=.*: has no train/ and test/; run LEAF's data/shakespeare"):
        shakespeare(str(tmp_path), Transform())


def test_tokens_are_not_scaled(tmp_path):
    with pytest.raises(ConfigError, match=r"dataset\.transform=shakespeare: has tokens, of which nothing can"):
        shakespeare(str(write(tmp_path)), Transform(mean=[0.5], std=[0.5]))


def test_a_run_from_files_to_accuracy(monkeypatch, tmp_path):
    """And what feature skew says to text."""
    words = ["dataset=shakespeare", f"dataset.root={write(tmp_path / 'leaf')}", "partition=natural", "model=lstm"]
    words += ["model.hidden=8", "clients=3", "clients_per_round=2", "rounds=2", "local.batch_size=4"]
    assert run(monkeypatch, tmp_path / "out", *words) == 0
    found = result(tmp_path / "out")
    assert found["status"] == "finished" and 0 <= found["final_accuracy"] <= 1
    assert run(monkeypatch, tmp_path / "skewed", *words, "partition.noise=0.1") == 2
