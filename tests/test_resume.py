"""Runs that go on: after a kill or a signal, with more rounds than before, from stage to stage."""

import json
import os
import signal
import sys
import time
from types import ModuleType

import pytest
import torch
from program import FEW, fork, metrics, only_folder, result, run, same_results, wait_for_rounds

CLOCK = ("seconds", "samples_per_second")


EXTENDED = {
    "fedavg": ["reference=centralized"],
    "scaffold": ["algorithm=scaffold"],
    "fedbuff": ["algorithm=fedbuff"],
    "fedcat in the middle of a cycle": ["algorithm=fedcat"],
    "fedper": ["algorithm=fedper", "evaluate.clients=all", "evaluate.on=train"],
    "fedconcat in its last stage": ["algorithm=fedconcat", "algorithm.encoder_rounds=1"],
    "parts": ["server_optimizer=adam", "compression=top_k", "selection=clusamp"],
}


@pytest.mark.parametrize("name", EXTENDED)
def test_more_rounds_go_on_where_a_finished_run_has_ended(monkeypatch, tmp_path, name, capfd):
    """Two rounds, then five, are five at once, to the bit."""
    words = [*FEW, *EXTENDED[name]]
    assert run(monkeypatch, tmp_path / "parts", *words, "rounds=2") == 0
    assert result(tmp_path / "parts")["rounds"] == 2
    capfd.readouterr()
    assert run(monkeypatch, tmp_path / "parts", *words, "rounds=5") == 0
    assert "going on after round 2" in capfd.readouterr().out
    assert run(monkeypatch, tmp_path / "whole", *words, "rounds=5") == 0
    assert same_results(tmp_path / "parts", tmp_path / "whole")
    first, second = (result(tmp_path / place) for place in ("parts", "whole"))
    assert first.keys() == second.keys()
    assert all(first[key] == second[key] for key in first.keys() - set(CLOCK))
    if "stage" in metrics(tmp_path / "whole"):
        assert metrics(tmp_path / "whole")["stage"].tolist() == ["encoders", *["head"] * 4]
        assert run(monkeypatch, tmp_path / "parts", *words, "rounds=1") == 2  # as it would be refused alone
        assert "after rounds 2, 3, 4, 5: ask for one of these" in capfd.readouterr().err


DRAWING = """
import random
from dataclasses import dataclass
import numpy as np
import torch
from fedexp.algorithms.fedavg import FedAvg

def parts(dataset, clients, seed):
    return list(torch.from_numpy(np.random.permutation(len(dataset.train_y))).tensor_split(clients))

@dataclass(frozen=True, kw_only=True)
class Drawing(FedAvg):
    def init(self, ctx, params): return {**super().init(ctx, params), "seen": torch.rand(())}
    def inspect(self, model, download, memory, examples): return {"scale": torch.rand(())}
    def loss(self, model, params, batch, client):
        noisy = batch._replace(x=batch.x + random.random() * torch.randn_like(batch.x))
        return client.found["scale"] * super().loss(model, params, noisy, client)
    def aggregate(self, state, ids, uploads, ctx, gen):
        after = super().aggregate(state, ids, uploads, ctx, gen)
        moved = {name: leaf + 0.01 * np.random.normal() for name, leaf in after["params"].items()}
        return {**after, "params": moved, "seen": state["seen"] + random.random()}
    def metrics(self, state, ctx): return {"seen": float(state["seen"])}
"""


def test_own_code_that_draws_from_global_generators_draws_the_same_again(monkeypatch, tmp_path, capfd):
    """In hooks of a client and of the server, in a partition, after a resume and in any number of workers."""
    module = ModuleType("drawing")
    exec(DRAWING, vars(module))
    monkeypatch.setitem(sys.modules, "drawing", module)
    own = ["algorithm=own", "algorithm._target_=drawing.Drawing", "partition=own", "partition._target_=drawing.parts"]
    words = [*FEW[:-1], *own]
    for place, *more in (("parts", "rounds=2"), ("parts", "rounds=4"), ("whole", "rounds=4", "hardware.workers=2")):
        torch.manual_seed(len(place))
        assert run(monkeypatch, tmp_path / place, *words, *more) == 0
    assert "going on after round 2" in capfd.readouterr().out
    assert same_results(tmp_path / "parts", tmp_path / "whole")
    steps = metrics(tmp_path / "whole")["seen"].diff().dropna()
    assert steps.nunique() == 3 and steps.between(0, 1).all()
    assert run(monkeypatch, tmp_path / "other", *words, "rounds=1", "seed=1") == 0
    assert metrics(tmp_path / "other")["seen"][0] != metrics(tmp_path / "whole")["seen"][0]


def test_a_shorter_runs_last_round_is_no_row_of_a_longer_ones(monkeypatch, tmp_path):
    """It was evaluated because it was the last."""
    for root, lengths in ((tmp_path / "parts", (3, 5)), (tmp_path / "whole", (5,))):
        for rounds in lengths:
            assert run(monkeypatch, root, *FEW, "evaluate.every=2", f"rounds={rounds}") == 0
    assert metrics(tmp_path / "parts")["round"].tolist() == [2, 4, 5]
    assert same_results(tmp_path / "parts", tmp_path / "whole")


def test_a_longer_run_that_was_interrupted(monkeypatch, tmp_path, one_thread, capfd):
    """It finds the rounds that had been carried out, refuses to end between them and where it is, and goes on."""
    words = [*FEW, "checkpoint_seconds=0", "local.epochs=2"]
    assert run(monkeypatch, tmp_path / "killed", *words, "rounds=2") == 0
    job = fork(tmp_path / "killed", *words, "rounds=12")
    wait_for_rounds(tmp_path / "killed", 6, job)
    job.kill()
    job.join()
    assert run(monkeypatch, tmp_path / "killed", *words, "rounds=2") == 0
    assert run(monkeypatch, tmp_path / "killed", *words, "rounds=3") == 2
    assert "rounds=3: this run was interrupted after round" in capfd.readouterr().err
    assert run(monkeypatch, tmp_path / "killed", *words, "rounds=12") == 0
    assert run(monkeypatch, tmp_path / "whole", *words, "rounds=12") == 0
    assert same_results(tmp_path / "whole", tmp_path / "killed")


def test_a_finished_run_without_its_state_says_that_it_begins_again(monkeypatch, tmp_path, capfd):
    assert run(monkeypatch, tmp_path, *FEW, "rounds=1") == 0
    (only_folder(tmp_path) / "checkpoint.pt").unlink()
    assert run(monkeypatch, tmp_path, *FEW, "rounds=2") == 0
    assert "no state is left of the 1 rounds that were carried out: starting afresh" in capfd.readouterr().out
    assert metrics(tmp_path)["round"].tolist() == [1, 2]


def test_a_sweep_goes_on_with_runs_that_were_shorter(monkeypatch, tmp_path, capfd):
    """It does not take them for finished, and of two lengths of one run carries out the longer one."""
    assert run(monkeypatch, tmp_path, *FEW, "-m", "seed=0,1", "rounds=1") == 0
    capfd.readouterr()
    assert run(monkeypatch, tmp_path, *FEW, "-m", "seed=0,1", "rounds=2") == 0
    assert "2 done now, 0 finished before" in capfd.readouterr().out
    folders = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert [json.loads((folder / "result.json").read_text())["rounds"] for folder in folders] == [2, 2]
    assert run(monkeypatch, tmp_path, *FEW, "-m", "seed=0,1", "rounds=1") == 0
    assert "0 done now, 2 finished before" in capfd.readouterr().out
    assert run(monkeypatch, tmp_path, *FEW, "-m", "seed=0", "rounds=2,4,3", "evaluate.every=2") == 0
    assert "1 done now, 0 finished before" in capfd.readouterr().out
    assert run(monkeypatch, tmp_path, *FEW, "-m", "seed=0", "rounds=3", "evaluate.every=2") == 1
    said = capfd.readouterr().out
    assert "0 done now, 0 finished before, 1 failed" in said and "after rounds 2, 4: ask for one of these" in said


_STAGES = ["algorithm.encoder_rounds=6", "rounds=16"]  # of FedConcat: 6 rounds cluster and train encoders


@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        (["algorithm=fedavg", "hardware.workers=2"], 2, 5),
        (["algorithm=fedcat"], 2, 5),  # most likely in the middle of a cycle
        (["algorithm=fedconcat", *_STAGES], 7, 11),
        # Each algorithm's own test resumes it from a checkpoint, without a kill.
        pytest.param(["algorithm=fedper", "server_optimizer=adam", "compression=top_k"], 2, 5, marks=pytest.mark.slow),
        pytest.param(
            ["algorithm=fedconcat_id", "algorithm.clustering.random_inputs=200", *_STAGES],
            1,
            1,
            marks=pytest.mark.slow,
        ),
        pytest.param(["algorithm=scaffold"], 2, 5, marks=pytest.mark.slow),
        pytest.param(["algorithm=fedgen", "algorithm.server_steps=5"], 2, 5, marks=pytest.mark.slow),
        pytest.param(["algorithm=clusamp"], 2, 5, marks=pytest.mark.slow),
        pytest.param(["algorithm=feddyn"], 2, 5, marks=pytest.mark.slow),
        pytest.param(["algorithm=fedfa"], 2, 5, marks=pytest.mark.slow),
        pytest.param(["algorithm=cadis"], 2, 5, marks=pytest.mark.slow),
        pytest.param(["algorithm=moon"], 2, 5, marks=pytest.mark.slow),
        pytest.param(["algorithm=fesem"], 2, 5, marks=pytest.mark.slow),
        pytest.param(["algorithm=fedconcat", *_STAGES], 2, 5, marks=pytest.mark.slow),
        pytest.param(["algorithm=fedconcat_fedsoft", *_STAGES], 2, 5, marks=pytest.mark.slow),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_kill_9_and_the_same_command_again(monkeypatch, tmp_path, one_thread, draw, words, first, last):
    """At a random moment, in a random round. Equal to the bit."""
    words = [*FEW, "rounds=9", "local.epochs=2", "checkpoint_seconds=0", *words]
    run(monkeypatch, tmp_path / "whole", *words)
    job = fork(tmp_path / "killed", *words)
    wait_for_rounds(tmp_path / "killed", draw.randint(first, last), job)
    time.sleep(draw.uniform(0, 0.03))  # anywhere in the next one, saving included
    job.kill()
    job.join()
    assert len(metrics(tmp_path / "killed")) < len(metrics(tmp_path / "whole"))
    assert run(monkeypatch, tmp_path / "killed", *words) == 0
    assert same_results(tmp_path / "whole", tmp_path / "killed")


def test_sigterm_saves_and_exits_with_143(monkeypatch, tmp_path, one_thread, capfd):
    """With workers, which end with it."""
    words = [*FEW, "rounds=12", "local.epochs=3", "checkpoint_seconds=1000", "hardware.workers=2"]
    job = fork(tmp_path / "ended", *words)
    wait_for_rounds(tmp_path / "ended", 3, job)
    os.kill(job.pid, signal.SIGTERM)
    job.join(timeout=60)
    assert job.exitcode == 143
    assert "goes on from here" in capfd.readouterr().err
    assert result(tmp_path / "ended")["status"] == "interrupted"
    assert (only_folder(tmp_path / "ended") / "checkpoint.pt").exists()
    done = result(tmp_path / "ended")["rounds"]
    assert run(monkeypatch, tmp_path / "ended", *words) == 0
    run(monkeypatch, tmp_path / "whole", *words)
    assert done >= 3
    assert same_results(tmp_path / "whole", tmp_path / "ended")


WARM_UP = ["algorithm=fedavg_pretrained", "algorithm.pretraining_epochs=150", "model.hidden=64"]


def test_sigterm_in_a_warm_up_exits_with_143(monkeypatch, tmp_path):
    job = fork(tmp_path, *WARM_UP)
    while not list(tmp_path.glob("*/partition.csv")):
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(job.pid, signal.SIGTERM)
    job.join(timeout=60)
    assert job.exitcode == 143
    assert (result(tmp_path)["status"], result(tmp_path)["rounds"]) == ("interrupted", 0)


def test_a_long_warm_up_is_saved_before_the_first_round(monkeypatch, tmp_path, capfd):
    words = [*WARM_UP, "algorithm.pretraining_epochs=2", "local.epochs=20", "rounds=1", "checkpoint_seconds=0"]
    job = fork(tmp_path / "killed", *words)
    while not list(tmp_path.glob("killed/*/checkpoint.pt")):
        time.sleep(0.02)
    job.kill()
    job.join()
    assert run(monkeypatch, tmp_path / "killed", *words) == 0
    assert "going on after round 0" in capfd.readouterr().out
