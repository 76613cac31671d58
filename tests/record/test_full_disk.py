"""A full disk does not end a run: it is said, tried again, and at the end what is missing is named."""

import re

import pytest
import torch
from disks import files_no_longer_than, resize, small_disk
from program import metrics, only_folder, result, run, same_results

from fedexp.record.checkpoint import Checkpoint

WORDS = ["model.hidden=64", "checkpoint_seconds=0", "hardware.workers=1", "rounds=4"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The root of the run that had all the room it needed."""
    root = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        assert run(patch, root, *WORDS) == 0
    return root


def filling(monkeypatch, tmp_path, disk, first, last):
    """The word of a measure that fills the disk after round `first` and makes room again after round `last`."""
    (tmp_path / "filling.py").write_text(
        "from pathlib import Path\n"
        f"FILLER = Path({str(disk)!r}) / 'filler'\n"
        "def fill(done):\n"
        f"    if done.number == {first}:\n"
        "        with open(FILLER, 'wb', buffering=0) as file:\n"
        "            try:\n"
        "                while file.write(bytes(4096)):\n"
        "                    pass\n"
        "            except OSError:\n"
        "                pass\n"
        f"    if done.number == {last}:\n"
        "        FILLER.unlink()\n"
        "    return {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "filling", raising=False)
    return "+measures.disk=filling.fill"


def test_a_disk_that_is_full_for_some_rounds_is_said_once_and_made_good(monkeypatch, tmp_path, capfd, whole):
    with small_disk(tmp_path / "disk", "size=5m") as disk:
        assert run(monkeypatch, disk / "out", *WORDS, filling(monkeypatch, tmp_path, disk, 1, 3)) == 0
        said = capfd.readouterr().out
        assert said.count("could not save") == 1 and "No space left on device" in said
        assert "all files that could not be saved are saved now" in said
        assert "not saved:" not in said
        assert same_results(whole, disk / "out")


def test_a_disk_that_stays_full_is_an_error_at_the_end_and_the_same_command_goes_on(
    monkeypatch, tmp_path, capfd, whole
):
    with small_disk(tmp_path / "disk", "size=5m") as disk:
        words = [*WORDS, filling(monkeypatch, tmp_path, disk, 2, 99)]
        assert run(monkeypatch, disk / "out", *words) == 1
        said = capfd.readouterr()
        assert re.search(
            r"could not save class_accuracy.csv, .*; mend the cause given above, and run the same command again",
            said.err,
        )
        assert "Traceback" not in said.out + said.err
        assert re.search(r"not saved: .*checkpoint.pt \(\[Errno 28\]", said.out)
        resize(disk, "size=20m")
        assert run(monkeypatch, disk / "out", *words) == 0
        assert "going on after round" in capfd.readouterr().out
        assert same_results(whole, disk / "out")
        assert result(disk / "out")["status"] == "finished"


def test_a_disk_without_inodes(monkeypatch, tmp_path, capfd, whole):
    with small_disk(tmp_path / "disk", "size=20m,nr_inodes=7") as disk:
        assert run(monkeypatch, disk, *WORDS) == 1
        assert "could not save" in capfd.readouterr().err
        resize(disk, "nr_inodes=100")
        assert run(monkeypatch, disk, *WORDS) == 0
        assert same_results(whole, disk)


def test_a_disk_that_takes_no_folder_is_refused_before_training(monkeypatch, tmp_path, capfd):
    with small_disk(tmp_path / "disk", "size=1m,nr_inodes=2") as disk:
        assert run(monkeypatch, disk, *WORDS) == 2
        assert f"output_root={disk}: cannot be written to" in capfd.readouterr().err
        assert list(disk.iterdir()) == []


def test_files_that_may_not_grow_are_a_full_disk_too(monkeypatch, tmp_path, capfd, whole):
    with files_no_longer_than(60_000):
        assert run(monkeypatch, tmp_path / "out", *WORDS) == 1
    assert "could not save model.pt in" in capfd.readouterr().err
    assert result(tmp_path / "out")["status"] == "failed"
    assert len(metrics(tmp_path / "out")) == 4
    names = {path.name for path in only_folder(tmp_path / "out").iterdir()}
    assert not [name for name in names if "tmp" in name or "checkpoint" in name]
    assert run(monkeypatch, tmp_path / "out", *WORDS) == 0
    assert same_results(whole, tmp_path / "out")


def test_an_interrupted_save_is_said(monkeypatch, tmp_path, capfd):
    """Also where nothing has been saved before."""
    (tmp_path / "stopping.py").write_text(
        "import os, signal\ndef stop(done):\n    os.kill(os.getpid(), signal.SIGTERM)\n    return {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with files_no_longer_than(60_000):
        assert run(monkeypatch, tmp_path / "out", *WORDS, "+measures.stop=stopping.stop") == 143
    assert re.search(r"not saved: checkpoint.pt \(\[Errno 27\] File too large\)", capfd.readouterr().out)


def test_saving_needs_no_more_room_than_two_checkpoints(tmp_path):
    values = {"weights": torch.randn(250_000)}
    with small_disk(tmp_path / "disk", f"size={2 * (1_000_000 + 20_000)}") as disk:
        for _ in range(4):
            Checkpoint(disk, "own").save(values)
        checkpoint = Checkpoint(disk, "own")
        for _ in range(4):
            checkpoint.save(values)
        assert {path.name for path in disk.iterdir()} == {"checkpoint.pt", "checkpoint.previous.pt"}
