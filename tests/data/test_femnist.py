"""FEMNIST: LEAF's folder, the choice of writers, the natural partition, the download library's format."""

import json

import numpy as np
import pytest
import torch

from fedexp.data import Transform
from fedexp.data.femnist import CLASSES, choose, femnist
from fedexp.errors import ConfigError
from fedexp.partition.natural import natural

TRAIN = {"f0000_14": 6, "f0001_41": 3, "f0002_07": 12, "f0003_20": 9}
TEST = {"f0000_14": 2, "f0001_41": 1, "f0002_07": 2, "f0003_20": 1}


def example(writer, part, row):
    """28x28 greys and a label that tell writer, part and row."""
    number = sorted(TRAIN).index(writer)
    return np.full((28, 28), 40 * number + 20 * (part == "test") + row, dtype=np.uint8), (7 * number + row) % 62


@pytest.fixture
def leaf(tmp_path):
    """What LEAF's preprocess.sh -t sample leaves: several files a part, each of some users."""
    for part, sizes in (("train", TRAIN), ("test", TEST)):
        (tmp_path / part).mkdir()
        names = sorted(sizes)
        for number, some in enumerate((names[:1], names[1:])):
            held = {name: [example(name, part, row) for row in range(sizes[name])] for name in some}
            data = {
                name: {"x": [(x.flatten() / 255).tolist() for x, _ in rows], "y": [y for _, y in rows]}
                for name, rows in held.items()
            }
            content = {"users": some, "num_samples": [sizes[name] for name in some], "user_data": data}
            (tmp_path / part / f"all_data_{number}_niid_05_keep_0_{part}_9.json").write_text(json.dumps(content))
    return tmp_path


def test_reads_leaf_s_folder_exactly(leaf):
    data = femnist(str(leaf), Transform(), writers=None, more_than=0)
    assert data.classes == 62 == len(CLASSES) and data.class_names[10] == "A" and data.class_names[36] == "a"
    assert data.train_x.shape == (30, 1, 28, 28) and data.train_x.dtype == torch.uint8
    expected = [example(name, "train", row) for name in sorted(TRAIN) for row in range(TRAIN[name])]
    assert torch.equal(data.train_x[:, 0], torch.from_numpy(np.stack([x for x, _ in expected])))
    assert data.train_y.tolist() == [y for _, y in expected]
    assert data.owners.tolist() == [0] * 6 + [1] * 3 + [2] * 12 + [3] * 9
    pooled = [example(name, "test", row) for name in sorted(TEST) for row in range(TEST[name])]
    assert data.test_y.tolist() == [y for _, y in pooled]


def test_writers_with_too_few_examples_are_left_out(leaf):
    data = femnist(str(leaf), Transform(), writers=None, more_than=8)
    assert sorted(TRAIN)[2:] == ["f0002_07", "f0003_20"]
    assert data.owners.tolist() == [0] * 12 + [1] * 9 and len(data.test_y) == 3
    with pytest.raises(ConfigError, match=r"dataset.writers=3: 2 of 4 writers have more than dataset.more_than=8"):
        femnist(str(leaf), Transform(), writers=3, more_than=8)


def test_the_choice_of_writers_hangs_on_its_seed_alone():
    counts = {f"w{number:03}": number for number in range(300)}
    first = choose(counts, 180, 100, 0)
    assert len(set(first)) == 180 and first == sorted(first) and first == choose(counts, 180, 100, 0)
    assert min(first) > "w100" and first != choose(counts, 180, 100, 1)


def test_natural_partition_gives_each_writer_a_client(leaf):
    data = femnist(str(leaf), Transform(), writers=None, more_than=0)
    parts = natural(data, 4, seed=0)
    assert [len(part) for part in parts] == [6, 3, 12, 9]
    with pytest.raises(ConfigError, match=r"clients=5: .* use 4"):
        natural(data, 5, seed=0)


def test_missing_folders_say_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"dataset.root=.*preprocess\.sh"):
        femnist(str(tmp_path), Transform(), download=False)
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    with pytest.raises(ConfigError, match=r"holds no \*\.json"):
        femnist(str(tmp_path), Transform())
    (tmp_path / "train" / "x.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no file of LEAF's"):
        femnist(str(tmp_path), Transform())


def test_reads_what_the_download_library_gives(tmp_path):
    """The hub's columns and types, from a folder of parquet files in its place."""
    datasets = pytest.importorskip("datasets", reason="the extra [femnist] is not installed")
    from PIL import Image

    rows = [(name, *example(name, "train", row)) for name in sorted(TRAIN) for row in range(TRAIN[name])]
    columns = {
        "image": [Image.fromarray(x) for _, x, _ in rows],
        "writer_id": [name for name, *_ in rows],
        "hsf_id": [0] * len(rows),
        "character": [y for *_, y in rows],
    }
    features = datasets.Features(
        image=datasets.Image(), writer_id=datasets.Value("string"), hsf_id=datasets.Value("int64"),
        character=datasets.ClassLabel(names=CLASSES),
    )  # fmt: skip
    (tmp_path / "hub").mkdir()
    datasets.Dataset.from_dict(columns, features).to_parquet(str(tmp_path / "hub" / "train-00000-of-00001.parquet"))
    data = femnist(str(tmp_path), Transform(), 2, 8, repository=str(tmp_path / "hub"), test_fraction=0.25)
    assert torch.bincount(data.owners).tolist() == [9, 7] and len(data.test_y) == 3 + 2
    seen = torch.cat([data.train_x[:, 0, 0, 0], data.test_x[:, 0, 0, 0]]).sort().values.tolist()
    wanted = [int(x[0, 0]) for name, x, _ in rows if TRAIN[name] > 8]
    assert seen == sorted(wanted)
    for x, y in zip(data.train_x[:, 0, 0, 0].tolist(), data.train_y.tolist()):
        assert y == (7 * (x // 40) + x % 40) % 62
