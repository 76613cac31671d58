"""A run's folder is never removed, unless this very process has made it and begun nothing in it."""

import struct

import pytest
from composing import composed
from filelock import FileLock
from program import FEW, only_folder, result, run

from fedexp.record.folder import RunFolder


def content(folder):
    """Every file's bytes, by its path in the folder; the lock, which each process opens anew, apart."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_a_finished_run_without_its_config_is_found_and_left_as_it_is(monkeypatch, tmp_path, capfd):
    assert run(monkeypatch, tmp_path, *FEW, "rounds=1") == 0
    folder = only_folder(tmp_path)
    (folder / "config.yaml").unlink()
    (folder / "notes.txt").write_text("the user's own")
    before = content(folder)
    assert run(monkeypatch, tmp_path, *FEW, "rounds=1") == 0
    assert "this run has already finished" in capfd.readouterr().out
    assert content(folder) == before


@pytest.fixture
def mnist(tmp_path):
    """A data root with 40 images of each part, in MNIST's format."""
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        images = struct.pack(">HBB3I", 0, 8, 3, 40, 28, 28) + bytes(40 * 28 * 28)
        labels = struct.pack(">HBBI", 0, 8, 1, 40) + bytes(number % 10 for number in range(40))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return tmp_path / "data"


WORDS = ["dataset=mnist", "partition=iid", "model.hidden=4", "clients=4", "rounds=1"]


@pytest.mark.parametrize("lost", [["config.yaml"], ["config.yaml", "result.json"]], ids=len)
def test_a_run_that_is_refused_later_on_keeps_its_folder(monkeypatch, capfd, tmp_path, mnist, lost):
    """The data have gone: what an earlier process has left there stays."""
    out = tmp_path / "out"
    assert run(monkeypatch, out, *WORDS, f"dataset.root={mnist}") == 0
    folder = only_folder(out)
    for name in lost:
        (folder / name).unlink()
    before = content(folder)
    refused = [*WORDS, "dataset.root=/nowhere", "dataset.download=false"]
    assert run(monkeypatch, out, *refused) == (2 if "result.json" in lost else 0)
    assert content(folder) == before
    assert ("by hand" in capfd.readouterr().err) == ("result.json" in lost)


def test_only_a_folder_that_was_made_for_nothing_is_removed(monkeypatch, tmp_path):
    refused = [*WORDS, "dataset.root=/nowhere", "dataset.download=false"]
    assert run(monkeypatch, tmp_path / "out", *refused) == 2
    assert list((tmp_path / "out").iterdir()) == []


def test_asking_whether_a_folder_is_busy_makes_none(tmp_path):
    folder = RunFolder(composed(f"output_root={tmp_path}"))
    assert not folder.is_busy() and list(tmp_path.iterdir()) == []
    with folder:
        assert RunFolder(composed(f"output_root={tmp_path}")).is_busy()
    assert not folder.is_busy()


def test_an_empty_folder_that_was_there_before_stays(monkeypatch, tmp_path, mnist):
    assert run(monkeypatch, tmp_path / "out", *WORDS, f"dataset.root={mnist}") == 0
    folder = only_folder(tmp_path / "out")
    for path in folder.iterdir():
        path.unlink()
    assert run(monkeypatch, tmp_path / "out", *WORDS, "dataset.root=/nowhere", "dataset.download=false") == 2
    assert only_folder(tmp_path / "out") == folder


def test_what_killed_saves_left_behind_is_removed_at_the_next_start(monkeypatch, tmp_path, capfd):
    """By whoever holds the folder, and by nobody else; the user's own files stay."""
    words = ["dataset=made", "dataset.shape=[1,8,8]", "dataset.train=60", "dataset.test=20", "rounds=1", "clients=4"]
    assert run(monkeypatch, tmp_path, *words) == 0
    folder = only_folder(tmp_path)
    left = [folder / name for name in (".metrics.csv.123.tmp", ".model.pt.9.tmp", "checkpoint.new.pt")]
    for path in [*left, folder / "notes.tmp"]:
        path.write_text("half")
    with FileLock(folder / ".lock"):
        assert run(monkeypatch, tmp_path, *words) == 75
        assert all(path.exists() for path in left)
    assert run(monkeypatch, tmp_path, *words) == 0
    assert "already finished" in capfd.readouterr().out
    assert not any(path.exists() for path in left) and (folder / "notes.tmp").exists()


@pytest.mark.parametrize(
    "text",
    [
        '{"status": "finished"}', '{"status": "finished", "rounds": "3"}', '{"rounds": 3}',
        '{"status": "finished", "rounds": 2}', '{"status": "finished", "rounds": 2, "final_accuracy": "high"}',
    ],
)  # fmt: skip
def test_a_result_without_its_numbers_is_none(monkeypatch, tmp_path, text):
    """The run goes on from its checkpoint and writes another."""
    assert run(monkeypatch, tmp_path, *FEW, "rounds=2") == 0
    (only_folder(tmp_path) / "result.json").write_text(text)
    assert run(monkeypatch, tmp_path, *FEW, "rounds=2") == 0
    assert result(tmp_path)["rounds"] == 2 and 0 <= result(tmp_path)["final_accuracy"] <= 1


@pytest.mark.parametrize("text", [None, "a,b\n1,2\n"])
def test_earlier_rounds_of_a_run_whose_metrics_are_gone(monkeypatch, capfd, tmp_path, text):
    assert run(monkeypatch, tmp_path, *FEW, "rounds=3") == 0
    file = only_folder(tmp_path) / "metrics.csv"
    file.unlink()
    if text is not None:
        file.write_text(text)
    capfd.readouterr()
    assert run(monkeypatch, tmp_path, *FEW, "rounds=2") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"fedexp: {file}: cannot be read") and "2 of its 3 rounds" in line
