"""Pictures by client under the protocol that CADIS has for its private PILL: folders to result, and its measures."""

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedexp.main import main

CLIENTS, CLASSES = {"anna": "ab", "ben": "ab", "cleo": "bc", "dan": "cd"}, "abcd"


@pytest.fixture
def pictures(tmp_path):
    """ROOT/train/CLIENT/CLASS/*.png and ROOT/test/CLASS/*.png: a colour a class, of different sizes."""
    draw = np.random.default_rng(0)

    def paint(folder, label, number):
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 60, (20 + number, 24, 3)) + 40 * CLASSES.index(label)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")

    for client, labels in CLIENTS.items():
        for label in labels:
            for number in range(6):
                paint(tmp_path / "pictures" / "train" / client / label, label, number)
    for label in CLASSES:
        for number in range(3):
            paint(tmp_path / "pictures" / "test" / label, label, number)
    return tmp_path / "pictures"


def test_pill_protocol(pictures, monkeypatch, tmp_path):
    words = [
        "paper=cadis", "dataset=image_folder", f"dataset.root={pictures}", "partition=natural", "algorithm=cadis",
        "clients=4", "dataset.size=16", "rounds=2", "local.epochs=1", "evaluate.clients=all", "artifacts_every=1",
        "hardware=cpu", "tracking=none", f"output_root={tmp_path / 'out'}",
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", ["fedexp", *words])
    main()
    (folder,) = (tmp_path / "out").glob("image_folder-natural-resnet18-cadis-*")
    assert json.loads((folder / "result.json").read_text())["status"] == "finished"
    held = pd.read_csv(folder / "partition.csv", index_col="client")
    assert held.to_numpy().tolist() == [[6, 6, 0, 0], [6, 6, 0, 0], [0, 6, 6, 0], [0, 0, 6, 6]]
    assert list(held) == list(CLASSES)
    table = pd.read_csv(folder / "metrics.csv")
    weights = 11_168_832 + 512 * 4 + 4
    statistics = 2 * 4_800
    assert table["round_bytes_up"].tolist() == [3 * 4 * (weights + statistics)] * 2, "3 clients a round, ResNet-18"
    assert table["clusters"].between(1, 3).all()
    for name in ("received_accuracy", "client_accuracy"):
        assert table[f"{name}_mean"].between(0, 1).all()
    assert table["received_accuracy_variance"].between(0, 0.25).all()
    assert pd.read_csv(folder / "clients.csv")["client"].tolist() == [0, 1, 2, 3]
    assert (table["clustering_seconds"] > 0).all()
    assert (table["averaging_seconds"] > 0).all()
    for name in ("similarity_round0001.png", "similarity_round0002.png", "similarity.csv", "confusion.png"):
        assert (folder / name).stat().st_size > 50
    confusion = pd.read_csv(folder / "confusion.csv", index_col="class")
    assert confusion.sum(axis=1).tolist() == [3] * 4
