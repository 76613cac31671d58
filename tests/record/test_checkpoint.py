"""Checkpoints: killed at any instant, damaged, foreign, without a checksum; and real runs that go on from them."""

import multiprocessing
import os
import resource
import shutil
import signal
import sys

import pytest
import torch
from damage import damage
from program import FEW, fork, only_folder, result, run, same_results, start, wait_for_rounds

from fedexp import files
from fedexp.record.checkpoint import Checkpoint

CPU = torch.device("cpu")
NAMES = {"checkpoint.pt", "checkpoint.previous.pt", "checkpoint.new.pt"}


def save(checkpoint, number):
    checkpoint.save({"number": number, "weights": torch.full((20_000,), float(number))})


def number(folder):
    """Which save is loaded, after a look at all of it."""
    values, said = Checkpoint(folder, "own").load(CPU)
    assert (values["weights"] == values["number"]).all()
    return values["number"], said


def both_good(folder):
    for each in (1, 2):
        save(Checkpoint(folder, "own"), each)


def newest_damaged(folder):
    save(Checkpoint(folder, "own"), 2)
    save(Checkpoint(folder, "own"), 1)
    (folder / "checkpoint.pt").write_bytes(b"damaged" * 9999)


def newest_missing(folder):
    """As a kill between the two renames leaves it."""
    both_good(folder)
    (folder / "checkpoint.pt").replace(folder / "checkpoint.previous.pt")
    (folder / "checkpoint.new.pt").write_bytes(b"unused")


def killed_while_writing(folder):
    save(Checkpoint(folder, "own"), 2)
    (folder / "checkpoint.new.pt").write_bytes(b"cut sh")


def save_and_die(folder, event, length):
    """Load, save 3, and be killed before the file operation `event`, or where a file would grow beyond `length`."""
    happened = []

    def count(name, arguments):
        if name in ("open", "os.rename", "os.remove") and str(arguments[0]).startswith(str(folder)):
            happened.append(name)
            if len(happened) == event:
                os.kill(os.getpid(), signal.SIGKILL)

    checkpoint = Checkpoint(folder, "own")
    checkpoint.load(CPU)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python has it ignored
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, resource.RLIM_INFINITY))
    sys.addaudithook(count)
    save(checkpoint, 3)


def killed(folder, event=0, length=resource.RLIM_INFINITY):
    """Whether the saving process was killed, rather than done."""
    process = multiprocessing.get_context("fork").Process(target=save_and_die, args=(folder, event, length))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL, -signal.SIGXFSZ)
    return process.exitcode != 0


@pytest.mark.parametrize("before", [both_good, newest_damaged, newest_missing, killed_while_writing])
def test_a_kill_at_any_instant_of_a_save_loses_nothing(tmp_path, draw, before):
    """What was good (save 2) or what was being saved (3) is loaded; never two files more; the next save works."""
    lengths = [0, 1, 79_000, *(draw.randrange(80_000) for _ in range(7))]
    kills, found = 0, set()
    instants = [{"length": length} for length in lengths] + [{"event": event} for event in range(1, 30)]
    for place, instant in enumerate(instants):
        folder = tmp_path / str(place)
        folder.mkdir()
        before(folder)
        kills += (was_killed := killed(folder, **instant))
        assert len(list(folder.iterdir())) <= 2
        loaded, _ = number(folder)
        assert loaded in ((2, 3) if was_killed else (3,)), instant
        found.add(loaded)
        last = Checkpoint(folder, "own")
        last.load(CPU)
        save(last, 4)
        assert number(folder) == (4, [])
        last.settle()
        assert [path.name for path in folder.iterdir()] == ["checkpoint.pt"]
        assert number(folder) == (4, [])
        if not was_killed:
            break  # there are no more events: later ones would be this one again
    assert kills >= 4 + len(lengths)  # open, one or two renames, removing what is in the way
    assert found == {2, 3}


def test_a_full_disk_leaves_what_was_saved_before(tmp_path):
    both_good(tmp_path)
    checkpoint = Checkpoint(tmp_path, "own")
    checkpoint.load(CPU)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            save(checkpoint, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert number(tmp_path) == (2, [])
    save(checkpoint, 4)
    assert number(tmp_path) == (4, [])
    (tmp_path / "checkpoint.pt").unlink()
    assert number(tmp_path) == (2, [])


def test_a_checkpoint_leaves_on_the_cpu_what_was_there(tmp_path):
    """Algorithms keep counts and distances there, and index with them; other tensors come to the device."""
    checkpoint = Checkpoint(tmp_path, "fingerprint")
    checkpoint.save({"counts": torch.tensor([3, 1]), "params": torch.ones(2, device="meta")})
    found, refused = checkpoint.load(torch.device("meta"))
    assert (found["counts"].tolist(), found["params"].device.type, refused) == ([3, 1], "meta", [])


WORDS = [*FEW, "rounds=12", "local.epochs=2", "model.hidden=8", "checkpoint_seconds=0"]


def leave_interrupted(root, *words):
    """The folder of a run that was asked to end, with two checkpoints."""
    job = fork(root, *WORDS, *words)
    wait_for_rounds(root, 4, job)
    os.kill(job.pid, signal.SIGTERM)
    job.join(timeout=60)
    assert job.exitcode == 143
    folder = only_folder(root)
    assert {path.name for path in folder.iterdir()} & NAMES == NAMES - {"checkpoint.new.pt"}
    return folder


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """(a run that was interrupted, the same that was not)."""
    base = tmp_path_factory.mktemp("runs")
    leave_interrupted(base / "interrupted")
    job = start(base / "whole", *WORDS)  # another process altogether, whose results are the same
    said, _ = job.communicate(timeout=300)
    assert job.returncode == 0, said
    return base / "interrupted", base / "whole"


@pytest.fixture
def interrupted(roots, tmp_path):
    """(the root of a copy of the interrupted run, its folder)."""
    shutil.copytree(roots[0], tmp_path / "copy")
    return tmp_path / "copy", only_folder(tmp_path / "copy")


def test_every_damage_to_a_runs_checkpoint_is_noticed_and_the_previous_one_taken(interrupted, draw):
    _, folder = interrupted
    newest, checkpoint = folder / "checkpoint.pt", Checkpoint(folder, folder.name.rpartition("-")[2])
    whole, previous = newest.read_bytes(), files.load(folder / "checkpoint.previous.pt")["values"]
    for _ in range(100):
        newest.write_bytes(whole)
        what = damage(newest, draw)
        values, said = checkpoint.load(CPU)
        assert len(said) == 2, what
        assert f"{newest} " in said[0] and "checksum" in said[0] and said[0].endswith("; not used")
        assert said[1] == f"{folder / 'checkpoint.previous.pt'} is used instead"
        assert values["history"] == previous["history"]
        params = previous["state"]["params"]
        assert all(torch.equal(value, params[name]) for name, value in values["state"]["params"].items())


@pytest.mark.parametrize("count", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_a_run_goes_on_from_the_previous_checkpoint_to_the_same_end(monkeypatch, capfd, roots, tmp_path, draw, count):
    """Equal to the bit, whatever was damaged."""
    for place in range(count):
        root = tmp_path / str(place)
        shutil.copytree(roots[0], root)
        what = damage(only_folder(root) / "checkpoint.pt", draw)
        assert run(monkeypatch, root, *WORDS) == 0
        said = capfd.readouterr().out
        assert "checkpoint.previous.pt is used instead" in said, what
        assert "going on after round" in said
        assert same_results(roots[1], root), what
        shutil.rmtree(root)


def without_checksum(path, draw):
    """As versions before it wrote them."""
    torch.save(files.load(path), path)


@pytest.mark.parametrize("spoil", [damage, without_checksum])
def test_a_run_without_a_good_checkpoint_says_that_it_starts_afresh(
    monkeypatch, capfd, roots, interrupted, draw, spoil
):
    root, folder = interrupted
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        spoil(folder / name, draw)
    assert run(monkeypatch, root, *WORDS) == 0
    said = capfd.readouterr().out
    assert said.count("checksum") == said.count("; not used") == 2
    assert "fedexp: no good checkpoint is left: starting afresh" in said
    assert "going on after" not in said
    assert same_results(roots[1], root)


def test_a_foreign_checkpoint_is_refused(monkeypatch, capfd, roots, interrupted, tmp_path):
    root, folder = interrupted
    foreign = leave_interrupted(tmp_path / "foreign", "seed=1")
    (folder / "checkpoint.previous.pt").unlink()
    os.replace(foreign / "checkpoint.pt", folder / "checkpoint.pt")
    assert run(monkeypatch, root, *WORDS) == 0
    said = capfd.readouterr().out
    assert "belongs to another run" in said
    assert "starting afresh" in said
    assert "going on after" not in said
    assert same_results(roots[1], root)


def test_a_run_does_not_move_to_another_kind_of_device(monkeypatch, tmp_path, capfd):
    """Where parts of its state belong is known to that kind alone."""
    assert run(monkeypatch, tmp_path, *FEW) == 0
    folder = only_folder(tmp_path)
    fingerprint, digest = (result(tmp_path)[name] for name in ("fingerprint", "partition_hash"))
    (folder / "result.json").unlink()
    Checkpoint(folder, fingerprint).save({"device": "cuda", "partition_hash": digest, "state": {"round": 1}})
    assert run(monkeypatch, tmp_path, *FEW) == 2
    said = capfd.readouterr().err
    assert "hardware.device=cpu: this run was begun on cuda" in said
    assert f"resume it there, or delete {folder}" in said
