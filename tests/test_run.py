"""Whole runs: what they leave, idempotence, signals, resume, torn files, divergence."""

import json
import os
import random
import re
import signal
import time

import pandas as pd
import pytest
import torch
from filelock import FileLock
from program import metrics, only_folder, result, run, start

from fedexp.record.checkpoint import Checkpoint

COLUMNS = [
    "round", "test_accuracy", "test_loss", "local_loss", "bytes_up", "bytes_down", "bytes_total",
    "divergence_mean", "divergence_max", "cohort_emd", "seconds",
]  # fmt: skip


def model(root):
    return torch.load(only_folder(root) / "model.pt", weights_only=True)


def same_results(first, second):
    """Metrics (without the clock) and final weights, to the bit."""
    pd.testing.assert_frame_equal(metrics(first), metrics(second), check_exact=True)
    left, right = model(first), model(second)
    return all(torch.equal(left[name], right[name]) for name in left)


def test_what_a_run_leaves(monkeypatch, tmp_path, capfd):
    assert run(monkeypatch, tmp_path, "evaluate_every=2", "targets=[0.05,0.999]") == 0
    folder = only_folder(tmp_path)
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    tables = {"partition.csv", "partition.png", "confusion.csv", "confusion.png", "class_accuracy.csv"}
    assert names == tables | {"config.yaml", "metrics.csv", "model.pt", "result.json"}
    table = pd.read_csv(folder / "metrics.csv")
    assert list(table)[: len(COLUMNS)] == COLUMNS
    assert table["round"].tolist() == [2, 4, 6]
    weights = sum(value.numel() for value in model(tmp_path).values())
    assert table["bytes_up"].tolist() == [4 * 4 * weights] * 3
    assert table["bytes_total"].tolist() == [2 * 16 * weights * r for r in (2, 4, 6)]
    found = result(tmp_path)
    assert found["status"] == "finished"
    assert found["rounds"] == 6
    assert found["final_accuracy"] == table["test_accuracy"].iloc[-1]
    assert found["best_accuracy"] == table["test_accuracy"].max()
    assert found["rounds_to"] == {"0.05": 2, "0.999": None}
    assert found["bytes_up"] == 6 * 16 * weights
    assert 0 < found["emd"] < 2
    assert found["fingerprint"] in folder.name
    assert found["accuracy_last10"] == pytest.approx(table["test_accuracy"].mean())
    confusion = pd.read_csv(folder / "confusion.csv", index_col="class").to_numpy()
    assert confusion.sum() == 360
    assert confusion.trace() / 360 == pytest.approx(found["final_accuracy"])
    partition = pd.read_csv(folder / "partition.csv", index_col="client")
    assert partition.to_numpy().sum() == 1437
    assert capfd.readouterr().out.strip().splitlines()[-1] == str(folder)


def test_a_finished_run_is_found_and_not_repeated(monkeypatch, tmp_path, capfd):
    run(monkeypatch, tmp_path, "rounds=1")
    before = (only_folder(tmp_path) / "result.json").stat().st_mtime_ns
    assert run(monkeypatch, tmp_path, "rounds=1", "hardware.workers=1") == 0
    assert (only_folder(tmp_path) / "result.json").stat().st_mtime_ns == before
    assert "finished before" in capfd.readouterr().out


def test_seeds_differ_and_repeat(monkeypatch, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(monkeypatch, tmp_path / name, f"seed={seed}", "rounds=2")
    assert same_results(tmp_path / "a", tmp_path / "b")
    assert result(tmp_path / "a")["partition_hash"] != result(tmp_path / "c")["partition_hash"]


def wait_for_rounds(root, count, job):
    """Until the run in `job` has evaluated `count` rounds."""
    for _ in range(1200):
        found = list(root.glob("*/metrics.csv"))
        if found and len(found[0].read_text().splitlines()) > count:
            return
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.05)
    raise AssertionError("no progress in 60 s")


@pytest.fixture
def one_thread():
    """In this process as in those that `start` starts: FedGen's server trains, and threads change rounding."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


_STAGES = ["algorithm.encoder_rounds=6", "rounds=40"]  # of FedConcat: 6 rounds cluster and train encoders


@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        (["algorithm=fedavg"], 2, 6),
        (["algorithm=scaffold"], 2, 6),
        (["algorithm=fedcat"], 2, 6),  # most likely in the middle of a cycle
        (["algorithm=fedgen"], 2, 6),
        (["algorithm=clusamp"], 2, 6),
        (["algorithm=feddyn"], 2, 6),
        (["algorithm=fedfa"], 2, 6),
        (["algorithm=cadis"], 2, 6),
        (["algorithm=moon"], 2, 6),
        (["algorithm=fesem"], 2, 6),
        (["algorithm=fedconcat_id", "algorithm.clustering.random_inputs=200", *_STAGES], 1, 1),
        (["algorithm=fedconcat", *_STAGES], 2, 5),
        (["algorithm=fedconcat_fedsoft", *_STAGES], 2, 5),
        (["algorithm=fedconcat", *_STAGES], 7, 20),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_kill_9_and_the_same_command_again(monkeypatch, tmp_path, one_thread, words, first, last):
    """At a random moment. Equal to the bit."""
    words = ["rounds=12", "local.epochs=2", "checkpoint_seconds=0", *words]
    run(monkeypatch, tmp_path / "whole", *words)
    job = start(tmp_path / "killed", *words)
    wait_for_rounds(tmp_path / "killed", random.randint(first, last), job)
    job.send_signal(signal.SIGKILL)
    output, _ = job.communicate()
    assert len(metrics(tmp_path / "killed")) < len(metrics(tmp_path / "whole")), output
    assert run(monkeypatch, tmp_path / "killed", *words) == 0
    assert same_results(tmp_path / "whole", tmp_path / "killed")


def test_sigterm_saves_and_exits_with_143(monkeypatch, tmp_path):
    words = ["rounds=20", "local.epochs=3", "checkpoint_seconds=1000"]
    job = start(tmp_path / "ended", *words)
    wait_for_rounds(tmp_path / "ended", 3, job)
    job.send_signal(signal.SIGTERM)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 143, output
    assert "goes on from here" in output
    assert result(tmp_path / "ended")["status"] == "interrupted"
    assert (only_folder(tmp_path / "ended") / "checkpoint.pt").exists()
    done = result(tmp_path / "ended")["rounds"]
    assert run(monkeypatch, tmp_path / "ended", *words) == 0
    run(monkeypatch, tmp_path / "whole", *words)
    assert done >= 3
    assert same_results(tmp_path / "whole", tmp_path / "ended")


WARM_UP = ["algorithm=fedavg_pretrained", "algorithm.pretraining_epochs=150", "model.hidden=64"]


def test_sigterm_in_a_warm_up_exits_with_143(monkeypatch, tmp_path):
    job = start(tmp_path, *WARM_UP)
    while not list(tmp_path.glob("*/partition.png")):
        time.sleep(0.05)
    time.sleep(0.5)
    job.send_signal(signal.SIGTERM)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 143, output
    assert (result(tmp_path)["status"], result(tmp_path)["rounds"]) == ("interrupted", 0)


def test_a_long_warm_up_is_saved_before_the_first_round(monkeypatch, tmp_path, capfd):
    words = [*WARM_UP, "algorithm.pretraining_epochs=2", "local.epochs=60", "rounds=1", "checkpoint_seconds=0"]
    job = start(tmp_path / "killed", *words)
    while not list(tmp_path.glob("killed/*/checkpoint.pt")):
        time.sleep(0.02)
    job.kill()
    job.communicate()
    assert run(monkeypatch, tmp_path / "killed", *words) == 0
    assert "going on after round 0" in capfd.readouterr().out


def test_a_run_whose_end_failed_is_not_finished(monkeypatch, tmp_path):
    """The model's file cannot be written: the same command tries again."""
    assert run(monkeypatch, tmp_path, "rounds=1") == 0
    folder = only_folder(tmp_path)
    (folder / "result.json").unlink()
    (folder / "model.pt").unlink()
    (folder / "model.pt").mkdir()  # a folder in its place
    with pytest.raises(OSError):
        run(monkeypatch, tmp_path, "rounds=1")
    assert result(tmp_path)["status"] == "failed"
    assert "Is a directory" in (folder / "error.txt").read_text()
    (folder / "model.pt").rmdir()
    assert run(monkeypatch, tmp_path, "rounds=1") == 0
    assert result(tmp_path)["status"] == "finished"
    assert not (folder / "error.txt").exists()


def test_a_signal_after_the_last_round_ends_a_sweep_and_leaves_the_run_finished(monkeypatch, tmp_path):
    (tmp_path / "late.py").write_text(
        "import os, signal\n"
        "from fedexp.algorithms.fedavg import FedAvg\n"
        "class Late(FedAvg):\n"
        "    def conclude(self, state, engine):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        return super().conclude(state, engine)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["-m", "algorithm._target_=late.Late", "algorithm.name=late", "seed=0,1", "rounds=1"]
    assert run(monkeypatch, tmp_path / "out", *words) == 143
    assert result(tmp_path / "out")["status"] == "finished"


def interrupted_run(monkeypatch, root, *words):
    """A run folder with two checkpoints, made by a run that was killed."""
    words = ["rounds=18", "local.epochs=3", "checkpoint_seconds=0", *words]
    job = start(root, *words)
    wait_for_rounds(root, 4, job)
    job.kill()
    job.communicate()
    return only_folder(root), words


def test_a_torn_checkpoint_is_refused_and_the_previous_one_used(monkeypatch, tmp_path, capfd):
    folder, words = interrupted_run(monkeypatch, tmp_path / "torn")
    newest = folder / "checkpoint.pt"
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    assert run(monkeypatch, tmp_path / "torn", *words) == 0
    output = capfd.readouterr().out
    assert re.search(r"checkpoint\.pt cannot be read .*not used", output)
    assert "going on after round" in output
    run(monkeypatch, tmp_path / "whole", *words)
    assert same_results(tmp_path / "whole", tmp_path / "torn")


def test_a_foreign_checkpoint_is_refused(monkeypatch, tmp_path, capfd):
    folder, _ = interrupted_run(monkeypatch, tmp_path / "a")
    other, words = interrupted_run(monkeypatch, tmp_path / "b", "seed=1")
    (other / "checkpoint.previous.pt").unlink(missing_ok=True)
    os.replace(folder / "checkpoint.pt", other / "checkpoint.pt")
    assert run(monkeypatch, tmp_path / "b", *words) == 0
    output = capfd.readouterr().out
    assert "belongs to another run" in output
    assert "going on after" not in output


def test_two_processes_at_one_folder(monkeypatch, tmp_path, capfd):
    run(monkeypatch, tmp_path, "rounds=1")
    folder = only_folder(tmp_path)
    (folder / "result.json").unlink()
    with FileLock(folder / ".lock"):
        assert run(monkeypatch, tmp_path, "rounds=1") == 75
    assert "is being worked on" in capfd.readouterr().err
    assert run(monkeypatch, tmp_path, "rounds=1") == 0


def test_divergence_ends_the_run_and_keeps_what_was_measured(monkeypatch, tmp_path):
    assert run(monkeypatch, tmp_path, "local.lr=1e18", "local.momentum=0") == 0
    found = result(tmp_path)
    assert found["status"] == "diverged"
    assert found["rounds"] < 6
    assert len(metrics(tmp_path)) == found["rounds"]
    json.loads((only_folder(tmp_path) / "result.json").read_text(), parse_constant=lambda name: pytest.fail(name))


def test_clustered_sampling_survives_until_a_divergence_is_seen(monkeypatch, tmp_path):
    words = ["algorithm=clusamp", "partition=iid", "local.lr=1e18", "local.momentum=0", "evaluate_every=3"]
    assert run(monkeypatch, tmp_path, *words) == 0
    assert (result(tmp_path)["status"], result(tmp_path)["rounds"]) == ("diverged", 3)


def test_participants_judge_the_model_that_they_receive(monkeypatch, tmp_path):
    """With everyone taking part, what is received in a round is what all judge after the round before."""
    rows = {}
    for whose in ("all", "participants"):
        words = ["clients=8", "clients_per_round=8", "rounds=3", f"evaluate_clients={whose}"]
        assert run(monkeypatch, tmp_path / whose, *words) == 0
        rows[whose] = metrics(tmp_path / whose)[["client_accuracy_mean", "client_accuracy_variance"]].to_numpy()
    assert rows["participants"][1:] == pytest.approx(rows["all"][:-1], abs=1e-12)  # summed in another order
    assert rows["all"][:, 1].min() > 0
    words = ["clients=8", "clients_per_round=1", "rounds=3", "evaluate_clients=participants"]
    assert run(monkeypatch, tmp_path / "one", *words) == 0
    assert metrics(tmp_path / "one")["client_accuracy_variance"].tolist() == [0, 0, 0]


def test_a_model_that_has_not_learned_is_said(monkeypatch, tmp_path, capfd):
    """At 37 of 360 answers right, as by always saying the commonest digit, and two standard errors above it."""
    assert run(monkeypatch, tmp_path / "still", "local.lr=1e-12", "rounds=1") == 0
    assert result(tmp_path / "still")["at_chance"] is True
    assert "the final accuracy is that of chance (always the commonest class: 10." in capfd.readouterr().out
    words = ["local.lr=0.1", "clients=4", "clients_per_round=4", "partition=iid", "local.epochs=3"]
    assert run(monkeypatch, tmp_path / "learns", *words) == 0
    assert result(tmp_path / "learns")["at_chance"] is False
    assert "chance" not in capfd.readouterr().out


def test_a_checkpoint_leaves_on_the_cpu_what_was_there(tmp_path):
    """Algorithms keep counts and distances there, and index with them; other tensors come to the device."""
    checkpoint = Checkpoint(tmp_path, "fingerprint")
    checkpoint.save({"counts": torch.tensor([3, 1]), "params": torch.ones(2, device="meta")})
    found, refused = checkpoint.load(torch.device("meta"))
    assert (found["counts"].tolist(), found["params"].device.type, refused) == ([3, 1], "meta", [])


def test_a_run_does_not_move_to_another_kind_of_device(monkeypatch, tmp_path, capfd):
    """Where parts of its state belong is known to that kind alone."""
    assert run(monkeypatch, tmp_path) == 0
    folder = only_folder(tmp_path)
    fingerprint, digest = (result(tmp_path)[name] for name in ("fingerprint", "partition_hash"))
    (folder / "result.json").unlink()
    Checkpoint(folder, fingerprint).save({"device": "cuda", "partition_hash": digest, "state": {"round": 1}})
    assert run(monkeypatch, tmp_path) == 2
    said = capfd.readouterr().err
    assert "hardware.device=cpu: this run was begun on cuda" in said
    assert f"go on there, or delete {folder}" in said


def test_speed_is_examples_by_the_seconds_so_far(monkeypatch, tmp_path):
    """Also in the first row, and where rows are apart."""
    words = ["clients=4", "clients_per_round=4", "rounds=5", "evaluate_every=2", "partition=iid"]
    assert run(monkeypatch, tmp_path, *words) == 0
    table = pd.read_csv(only_folder(tmp_path) / "metrics.csv")
    examples = table["samples_per_second"] * table["seconds"]
    assert examples.tolist() == pytest.approx([1437 * round for round in (2, 4, 5)], rel=0.05)
    assert result(tmp_path)["samples_per_second"] == table["samples_per_second"].iloc[-1]


def test_a_full_disk_does_not_end_or_spoil_a_run(monkeypatch, tmp_path, capfd):
    """metrics.csv cannot be written in the middle: said, and made good by the next round."""
    import fedexp.record.folder as folder_module

    real, calls = folder_module.files.write_text, []

    def full(path, text):
        if path.name == "metrics.csv":
            calls.append(path)
            if len(calls) == 3:
                raise OSError(28, "No space left on device")
        real(path, text)

    monkeypatch.setattr(folder_module.files, "write_text", full)
    assert run(monkeypatch, tmp_path) == 0
    assert "No space left on device" in capfd.readouterr().out
    assert len(metrics(tmp_path)) == 6


def test_an_own_algorithm_by_its_name(monkeypatch, tmp_path):
    """A user's class, no registry: named in _target_."""
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedexp.algorithms.fedavg import FedAvg\n"
        "@dataclass\n"
        "class Frozen(FedAvg):\n"
        "    share: float = 0.5\n"
        "    def merge(self, state, ids, sent, trained):\n"
        "        return state\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["algorithm._target_=mine.Frozen", "algorithm.name=frozen", "+algorithm.share=0.25", "rounds=2"]
    assert run(monkeypatch, tmp_path / "out", *words) == 0
    table = metrics(tmp_path / "out")
    assert table["test_loss"].nunique() == 1


def test_the_main_job_learns(monkeypatch, tmp_path):
    words = ["algorithm=fedcat", "partition=dir0.1", "model.hidden=512", "clients_per_round=4", "rounds=24"]
    assert run(monkeypatch, tmp_path, *words, "local.epochs=5", "local.batch_size=10") == 0
    assert result(tmp_path)["best_accuracy"] > 0.6
