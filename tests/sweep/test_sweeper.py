"""Sweeps for real: a whole quick table killed half-way and finished, other launchers, failures, ordinary multiruns."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout

import pandas as pd
import program
import pytest
from composing import asked
from filelock import FileLock
from program import FEW, SMALL, copy, run

from fedexp.main import main
from fedexp.record.folder import RunFolder
from fedexp.sweep.progress import Progress

QUICK = [
    "+table=fedcat_3",
    "+scale=quick",
    "paper=none",
    "model=mcmahan_cnn",
    "model.hidden=16",
    "rounds=3",
    "local.steps=5",
    'table.select="dir0.1"',  # a third of it: test_plan.py has the whole
]
EVERYWHERE = ["tracking=none", "hardware=cpu", "hardware.workers=1"]
TIMED = ["seconds", "samples_per_second"]


def start(root, *words):
    return copy("fedexp", "-m", *words, *EVERYWHERE, f"output_root={root}")


def carried_out(*words):
    """`python -m fedexp WORDS` in this process: its exit code, and all that it says."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as said, redirect_stderr(said):
        patch.setenv("COLUMNS", "200")
        patch.setattr(sys, "argv", ["fedexp", *words])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
    return 0, said.getvalue()


def sweep(root, *words):
    return carried_out("-m", *words, *EVERYWHERE, f"output_root={root}")


def curves(root):
    """What every run measured, by its folder's name; times apart."""
    return {
        path.parent.name: pd.read_csv(path).drop(columns=TIMED).to_csv() for path in root.glob("*/metrics.csv")
    }  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A quick table in this process' own launcher: killed half-way, then finished."""
    root = tmp_path_factory.mktemp("table")
    process = start(root, *QUICK)
    deadline = time.monotonic() + 300
    while len(list(root.glob("*/result.json"))) < 2:
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    before = {path: path.stat().st_mtime_ns for path in root.glob("*/result.json")}
    code, said = sweep(root, *QUICK)
    assert code == 0, said
    return root, before, said


def test_a_killed_table_goes_on_where_it_was(whole):
    root, before, said = whole
    results = {path: json.loads(path.read_text()) for path in root.glob("*/result.json")}
    assert len(results) == 4  # 8 cells: both data sets are stood in for by the same digits
    assert all(result["status"] == "finished" and result["rounds"] == 3 for result in results.values())
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())  # finished ones were left alone
    assert 2 <= len(before) < 4
    assert f"{4 - len(before)} done now, {len(before)} finished before, 0 failed" in said
    assert "Measured beside published" in said.partition("0 failed")[2], "the table, at the end"
    assert re.search(r"an interactive page: fedexp report table=fedcat_3 .*scale=quick", said), "its own words"


def test_a_finished_table_is_found_at_once(whole):
    root, _, _ = whole
    code, said = sweep(root, *QUICK)
    assert code == 0
    assert "runs to do: 0, 4 finished before" in said


def test_a_cell_runs_alone_too(whole):
    root, _, _ = whole
    (each,) = asked(*QUICK, *EVERYWHERE, f"output_root={root}", 'table.select="cifar10 dir0.1 fedcat$"')
    code, said = carried_out(*each.jobs[0].words)
    assert code == 0, said
    assert "already finished" in said
    assert each.jobs[0].fingerprint in said


def test_runs_say_what_they_are_a_part_of(whole):
    config = next(whole[0].glob("*fedcat_gc*/config.yaml")).read_text()
    assert "name: fedcat_3" in config
    assert "source: digits in its place" in config
    assert "name: quick" in config


@pytest.mark.parametrize(
    "launcher", ["joblib", *(pytest.param(name, marks=pytest.mark.slow) for name in ("submitit_local", "ray"))]
)
def test_other_launchers_give_the_same_results(whole, tmp_path, launcher):
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    few = ['table.select="cifar10 dir0.1 (fedavg|fedcat)$"', f"hydra/launcher={launcher}"]
    code, said = sweep(tmp_path, *QUICK, *few)
    assert code == 0, said
    found, serial = curves(tmp_path), curves(whole[0])
    assert len(found) == 2
    assert {name: serial[name] for name in found} == found


def test_a_launcher_that_works_in_this_process_does_not_lose_the_sweeper(tmp_path):
    """As joblib does on a machine with one core: Hydra then looks for its plugins anew."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    for seed, launcher in enumerate((["hydra/launcher=joblib", "hydra.launcher.n_jobs=1"], [])):
        code, said = sweep(tmp_path, *SMALL, *FEW, "rounds=1", f"seed={seed},2", *launcher)
        assert code == 0, said


def test_failures_are_listed_and_tried_again_and_stop_nothing(tmp_path):
    words = ["algorithm=fedavg,nothing", "partition=iid,dir", "clients=4,2000", "clients_per_round=2", "rounds=1"]
    words += ["partition.name=x", "local.epochs=1"]
    code, said = sweep(tmp_path, *words)
    assert code == 1
    assert "2 done now, 0 finished before, 6 failed" in said
    assert "failed: algorithm=nothing partition=iid clients=4: algorithm=nothing: no such option" in said
    assert "failed: algorithm=fedavg partition=iid clients=2000: clients=2000: " in said
    assert len(list(tmp_path.glob("*/result.json"))) == 2
    alone = [shlex.split(line)[2:] for line in said.splitlines() if line.startswith("    alone: python -m fedexp ")]
    assert len(alone) == 6
    (words_alone,) = [each for each in alone if {"algorithm=fedavg", "partition=iid", "clients=2000"} <= set(each)]
    code, reason = carried_out(*words_alone[2:])
    assert code == 2
    assert reason.startswith("fedexp: clients=2000: there are only 1437")
    code, said = sweep(tmp_path, *words)
    assert code == 1
    assert "runs to do: 2, 2 finished before, 4 refused" in said
    before_the_first, _, _ = said.partition("2/4 done")
    assert "  refused: algorithm=nothing partition=iid clients=4: algorithm=nothing: no such option" in before_the_first
    reasons = [path.read_text() for path in tmp_path.glob("*/error.txt")]
    assert len(reasons) == 2
    assert "6 of the sweep's runs failed; the same command tries them again" in said
    assert all("ConfigError" in reason for reason in reasons)


def test_runs_that_another_process_is_at_are_waited_for(monkeypatch, tmp_path, capfd):
    """Of three runs the other process finishes one, and leaves one for this sweep to do."""
    words = [*FEW, "-m", "seed=0,1,2", "rounds=1"]
    assert run(monkeypatch, tmp_path / "other", *words) == 0
    root = tmp_path / "here"
    (each,) = asked(*SMALL, *FEW, "seed=0,1,2", "rounds=1", f"output_root={root}")
    _, left, done = (RunFolder(job.config).path for job in each.jobs)
    locks = [FileLock(path / ".lock") for path in (left, done)]
    for lock, path in zip(locks, (left, done)):
        path.mkdir(parents=True)
        lock.acquire()

    def end(progress, busy):
        waiting(progress, busy)
        shutil.copytree(tmp_path / "other" / done.name, done, dirs_exist_ok=True)
        for lock in locks:
            lock.release()

    waiting = Progress.wait
    monkeypatch.setattr(Progress, "wait", end)
    assert run(monkeypatch, root, *words) == 0
    said = capfd.readouterr().out
    assert "waiting for runs that other processes are at: 2" in said
    assert said.count("2 done now, 1 finished before, 0 failed") == 1
    assert len(list(root.glob("*/result.json"))) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_sweep_stops_and_says_so(tmp_path, capfd, number):
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the command `fedexp` begins with it
    try:
        process = start(tmp_path, *QUICK, "rounds=200")
    finally:
        signal.signal(signal.SIGINT, before)
    while not list(tmp_path.glob("*/metrics.csv")):
        assert process.is_alive()
        time.sleep(0.01)
    os.kill(process.pid, number)
    process.join(timeout=60)
    said = "".join(capfd.readouterr())
    assert process.exitcode == 128 + number, said
    assert "stopped: 0 done now, 0 finished before, 4 left" in said
    assert "the same command goes on from here" in said and "Traceback" not in said
    assert len(list(tmp_path.glob("*/result.json"))) == 1


def test_an_interrupted_launcher_leaves_no_runs_that_go_on_without_it(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = ["-m", *FEW, "seed=0,1", "rounds=100000", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    process = program.start(tmp_path, *words)
    while len(list(tmp_path.glob("*/metrics.csv"))) < 2:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert "stopped: 0 done now, 0 finished before, 2 left" in said
    for path in tmp_path.glob("*/.lock"):
        with FileLock(path, timeout=60):  # the process that was at work there has ended
            assert not (path.parent / "model.pt").exists()


EXITING = """
import sys
from fedexp.algorithms.fedavg import FedAvg

class Exiting(FedAvg):
    def aggregate(self, state, ids, uploads, ctx, gen):
        if ctx.seed == 0:
            sys.exit(3)
        return super().aggregate(state, ids, uploads, ctx, gen)
"""


def test_code_that_ends_the_program_ends_its_run_alone(tmp_path, monkeypatch):
    (tmp_path / "exiting.py").write_text(EXITING)
    monkeypatch.syspath_prepend(tmp_path)
    own = ["algorithm=own", "algorithm._target_=exiting.Exiting", "rounds=1"]
    code, said = sweep(tmp_path / "out", *SMALL, *FEW, *own, "seed=0,1")
    assert code == 1, said
    assert "failed: seed=0: RuntimeError: code of this run ended the program (SystemExit: 3)" in said
    assert "1 done now, 0 finished before, 1 failed" in said


def test_a_run_s_damaged_metrics_stop_no_other(tmp_path):
    words = [*SMALL, *FEW, "seed=0,1"]
    code, said = sweep(tmp_path, *words, "rounds=2")
    assert code == 0, said
    damaged = next(path.parent for path in tmp_path.glob("*/config.yaml") if "\nseed: 0" in path.read_text())
    (damaged / "metrics.csv").write_text((damaged / "metrics.csv").read_text().replace("0.", "x."))
    code, said = sweep(tmp_path, *words, "rounds=1")
    assert code == 1, said
    assert "metrics.csv: cannot be read, so the result after 1 of its 2 rounds is not known" in said
    assert "0 done now, 1 finished before, 1 failed" in said


FAILING = """
import os, signal
from fedexp.algorithms.fedavg import FedAvg

class Failing(FedAvg):
    def artifacts(self, state, ctx):
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("no artifacts today")
"""


def test_a_run_that_fails_as_it_is_asked_to_end_ends_its_sweep_too(tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    own = ["algorithm=own", "algorithm._target_=failing.Failing", "rounds=1"]
    code, said = sweep(tmp_path / "out", *SMALL, *FEW, *own, "seed=0,1")
    assert code == 143, said
    assert "the run failed as it was asked to end: no artifacts today" in said
    assert "stopped: 0 done now, 0 finished before" in said
    (error,) = (tmp_path / "out").glob("*/error.txt")
    assert error.read_text().rstrip().endswith("RuntimeError: no artifacts today")
    assert error.read_text().startswith("RuntimeError: no artifacts today\n\nTraceback ")


@pytest.mark.parametrize("flag", ["hydra.searchpath=[file://{}]", "--config-dir={}"])
def test_options_of_ones_own_folder_are_swept(tmp_path, flag):
    option = tmp_path / "conf" / "algorithm" / "mine.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("name: mine\n_target_: fedexp.algorithms.fedprox.FedProx\nmu: 0.5\n")
    words = [*SMALL, *FEW, "rounds=1", "algorithm=fedavg,mine", flag.format(tmp_path / "conf")]
    code, said = sweep(tmp_path / "runs", *words)
    assert code == 0, said
    assert sorted(path.name.split("-")[3] for path in (tmp_path / "runs").glob("made-*")) == ["fedavg", "mine"]


def test_a_table_and_a_scale_of_ones_own_folder(tmp_path):
    """Their runs are compared like any others, since no paper has printed values for them."""
    table = "name: mine\ntitle: Mine\nmeasure: final\nseeds: [0, 1]\nrows: [{partition: iid}]\n"
    table += "columns: [{algorithm: [fedavg, fedprox]}]\n"
    scale = "name: tiny\nseeds: 1\nat_most: {rounds: 1}\n"
    for name, text in (("table/mine.yaml", table), ("scale/tiny.yaml", scale)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    words = [*SMALL, *FEW, "+table=mine", "+scale=tiny", "table.select=fed", f"hydra.searchpath=[file://{tmp_path}]"]
    code, said = sweep(tmp_path / "runs", *words)
    assert code == 0, said
    assert "mine (tiny): 2 done now" in said and "Test accuracy" in said
    assert f"fedexp report {tmp_path / 'runs'}" in said
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("made-*/result.json")]
    assert [result["rounds"] for result in results] == [1, 1]


def test_a_table_needs_multirun(tmp_path):
    code, said = carried_out("+table=fedcat_1", *EVERYWHERE, f"output_root={tmp_path}")
    assert code == 2
    assert "add --multirun (-m)" in said


def test_a_value_of_the_wrong_kind_leaves_out_its_runs_alone(tmp_path):
    words = [*SMALL, *FEW, "rounds=1"]
    code, said = sweep(tmp_path, *words, "seed=0,first", "local.lr=0.1")
    assert code == 1 and "1 done now, 0 finished before, 1 failed" in said
    assert "  failed: seed=first: must be a whole number\n" in said
    assert "1 of the sweep's runs failed; change what was refused" in said
    code, said = sweep(tmp_path, *words, "seed=first,second")
    assert code == 2 and said.strip().endswith("fedexp: seed=first: must be a whole number")
