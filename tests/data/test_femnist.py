"""FEMNIST: LEAF's folder, the choice of writers, the natural partition, the download library's format."""

import json

import numpy as np
import pytest
import torch
from program import run

from fedexp.data import Transform
from fedexp.data.femnist import CLASSES, femnist
from fedexp.data.leaf import choose as drawn
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

    def choose(found, number, seed):
        return drawn(found, number, 100, "femnist", seed, "writers")

    first = choose(counts, 180, 0)
    assert len(set(first)) == 180 and first == sorted(first)
    assert first == choose(dict(reversed(counts.items())), 180, 0), "in whatever order the files are"
    assert choose(counts, 3, 0) == ["w190", "w231", "w251"]
    assert min(first) > "w100" and first != choose(counts, 180, 1)


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
    with pytest.raises(ConfigError, match="is not a file of LEAF's"):
        femnist(str(tmp_path), Transform())


def respell(leaf, part, change):
    """Change the user_data of a part's second file, which holds all writers but the first; the file."""
    file = sorted((leaf / part).glob("*.json"))[1]
    content = json.loads(file.read_text())
    change(content["user_data"])
    file.write_text(json.dumps(content))
    return file


def test_writers_without_training_examples_are_left_out(leaf):
    """Their test examples with them."""
    respell(leaf, "train", lambda users: users["f0002_07"].update(x=[], y=[]))
    data = femnist(str(leaf), Transform(), writers=None, more_than=0)
    assert data.owners.tolist() == [0] * 6 + [1] * 3 + [2] * 9 and len(data.test_y) == 2 + 1 + 1
    assert [len(part) for part in natural(data, 3, seed=0)] == [6, 3, 9]


def put(writer, key, row, value):
    """The change that puts a value in the place of an example's label, or of its first pixel."""

    def change(users):
        if key == "y":
            users[writer]["y"][row] = value
        else:
            users[writer]["x"][row][0] = value

    return change


SPOILT = [
    (lambda users: users["f0002_07"].update(y=users["f0002_07"]["y"][:-2]), "has 12 examples but 10 labels"),
    (lambda users: users["f0003_20"]["x"].pop(), "has 8 examples but 9 labels"),
    (put("f0002_07", "x", 3, 55.5), r"has greys from 0\.\d+ to 55.5; they must be in \[0, 1\]"),
    (put("f0002_07", "x", 0, -0.25), r"has greys from -0.25 to .*; they must be in \[0, 1\]"),
    (put("f0001_41", "x", 0, float("nan")), r"has greys from nan to nan; they must be in \[0, 1\]"),
    (put("f0001_41", "x", 0, None), "has examples that are not numbers"),
    (put("f0001_41", "x", 0, "dark"), "has examples that are not numbers"),
    (put("f0001_41", "x", 0, "0.5"), "has examples that are not numbers"),
    (put("f0001_41", "x", 0, 10**400), "has examples that are not numbers"),
    (lambda users: users["f0001_41"].update(y={"0": 1, "1": 2, "2": 3}), "has an x or y that is not a list"),
    (lambda users: users["f0001_41"]["x"][1].pop(), "has examples that are not numbers"),
    (lambda users: [row.pop() for row in users["f0001_41"]["x"]], r"has examples \[3, 783\], not \[n, 784\]"),
    (put("f0002_07", "y", 4, 3.5), r"has labels that are float64 \[12\]; they must be integers"),
    (put("f0002_07", "y", 4, "a"), r"has labels that are <U.*; they must be integers"),
    (lambda users: users.update(f0000_14=users["f0001_41"]), "is in another file of .* too"),
]


@pytest.mark.parametrize(("change", "said"), SPOILT, ids=[said for _, said in SPOILT])
def test_what_does_not_fit_together_is_refused_with_its_file(leaf, change, said):
    file = respell(leaf, "train", change)
    with pytest.raises(ConfigError, match=rf"^dataset\.root={file}: writer f000\d_\d\d {said}") as error:
        femnist(str(leaf), Transform(), writers=None, more_than=0)
    assert str(error.value).count("dataset.root") == 1


@pytest.mark.parametrize(
    "spoil",
    [lambda file: file.write_text('{"user_data": {"a": {"x": []}}}'), lambda file: file.write_text('{"users": []}'),
     lambda file: file.write_bytes(file.read_bytes()[:99]), lambda file: file.write_bytes(b"\xff\xfe"),
     lambda file: file.write_text("[" * 10**5), lambda file: file.with_name("0.json").symlink_to("nowhere")],
)  # fmt: skip
def test_what_is_no_file_of_leaf_s_is_named(leaf, spoil):
    spoil(sorted((leaf / "train").glob("*.json"))[0])
    with pytest.raises(ConfigError, match=rf"^dataset\.root={leaf}/train/\w+\.json: is not a file of LEAF's \("):
        femnist(str(leaf), Transform(), writers=None, more_than=0)


def test_two_labels_too_few_in_the_test_part_are_refused_too(leaf):
    file = respell(leaf, "test", lambda users: users["f0002_07"].update(y=[]))
    with pytest.raises(ConfigError, match=f"{file}: writer f0002_07 has 2 examples but 0 labels"):
        femnist(str(leaf), Transform(), writers=None, more_than=0)


def test_labels_beyond_the_characters_are_refused(leaf):
    respell(leaf, "train", put("f0002_07", "y", 4, 77))
    with pytest.raises(ConfigError, match=f"dataset=femnist: {leaf}: train labels must be int64 from 0 to 61.* to 77"):
        femnist(str(leaf), Transform(), writers=None, more_than=0)


def test_the_program_refuses_labels_too_few_before_training(leaf, monkeypatch, capfd, tmp_path):
    file = respell(leaf, "train", SPOILT[0][0])
    words = ["dataset=femnist", f"dataset.root={leaf}", "dataset.writers=null", "dataset.more_than=0", "clients=4"]
    assert run(monkeypatch, tmp_path / "out", *words, "partition=natural") == 2
    assert f"fedexp: dataset.root={file}: writer f0002_07 has 12 examples but 10 labels" in capfd.readouterr().err


def test_a_writer_may_be_in_one_part_alone(leaf):
    respell(leaf, "test", lambda users: users.pop("f0002_07"))
    data = femnist(str(leaf), Transform(), writers=None, more_than=0)
    assert data.owners.tolist() == [0] * 6 + [1] * 3 + [2] * 12 + [3] * 9
    assert len(data.test_y) == 2 + 1 + 1


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
