"""Sweeps for real: a whole quick table killed half-way and finished, other launchers, failures, ordinary multiruns."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from recorded import asked

QUICK = ["+table=fedcat_3", "+scale=quick", "paper=none", "model=simple_cnn", "rounds=3"]
EVERYWHERE = ["tracking=none", "hardware=cpu", "hardware.workers=1"]
TIMED = ["seconds", "samples_per_second"]


def start(root, *words):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "fedexp", "-m", *words, *EVERYWHERE, f"output_root={root}"]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def sweep(root, *words):
    process = start(root, *words)
    said, _ = process.communicate(timeout=400)
    return process.returncode, said


def curves(root):
    """What every run measured, by its folder's name; times apart."""
    return {
        path.parent.name: pd.read_csv(path).drop(columns=TIMED).to_csv() for path in root.glob("*/metrics.csv")
    }  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A whole quick table in this process' own launcher: killed half-way, then finished."""
    root = tmp_path_factory.mktemp("table")
    process = start(root, *QUICK)
    deadline = time.monotonic() + 300
    while len(list(root.glob("*/result.json"))) < 5:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in root.glob("*/result.json")}
    code, said = sweep(root, *QUICK)
    assert code == 0, said
    return root, before, said


def test_a_killed_table_goes_on_where_it_was(whole):
    root, before, said = whole
    results = {path: json.loads(path.read_text()) for path in root.glob("*/result.json")}
    assert len(results) == 12  # 24 cells: both data sets are stood in for by the same digits
    assert all(result["status"] == "finished" and result["rounds"] == 3 for result in results.values())
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())  # finished ones were left alone
    assert f"{12 - len(before)} done now, {len(before)} finished before, 0 failed" in said


def test_a_finished_table_is_found_at_once(whole):
    root, _, _ = whole
    code, said = sweep(root, *QUICK)
    assert code == 0
    assert "0 runs to do, 12 finished before" in said


def test_a_cell_runs_alone_too(whole):
    root, _, _ = whole
    (each,) = asked(*QUICK, *EVERYWHERE, f"output_root={root}", 'table.select="cifar10 dir0.1 fedcat$"')
    command = [sys.executable, "-m", "fedexp", *each.jobs[0].words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "finished before" in done.stdout
    assert each.jobs[0].fingerprint in done.stdout


def test_runs_say_what_they_are_a_part_of(whole):
    config = next(whole[0].glob("*fedcat_gc*/config.yaml")).read_text()
    assert "name: fedcat_3" in config
    assert "source: digits in its place" in config
    assert "name: quick" in config


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "ray"])
def test_other_launchers_give_the_same_results(whole, tmp_path, launcher):
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    few = ['table.select="cifar10 dir0.1 (fedavg|fedcat)$"', f"hydra/launcher={launcher}"]
    code, said = sweep(tmp_path, *QUICK, *few)
    assert code == 0, said
    found, serial = curves(tmp_path), curves(whole[0])
    assert len(found) == 2
    assert {name: serial[name] for name in found} == found


def test_failures_are_listed_and_tried_again_and_stop_nothing(tmp_path):
    words = ["algorithm=fedavg,nothing", "partition=iid,dir", "clients=4,2000", "clients_per_round=2", "rounds=1"]
    words += ["partition.name=x", "local.epochs=1"]
    code, said = sweep(tmp_path, *words)
    assert code == 1
    assert "2 done now, 0 finished before, 6 failed" in said
    assert "failed: algorithm=nothing partition=iid clients=4: In 'config': Could not find 'algorithm/nothing'" in said
    assert "failed: algorithm=fedavg partition=iid clients=2000: clients=2000: " in said
    assert len(list(tmp_path.glob("*/result.json"))) == 2
    alone = [shlex.split(line)[2:] for line in said.splitlines() if line.startswith("    alone: python -m fedexp ")]
    assert len(alone) == 6
    (words_alone,) = [each for each in alone if {"algorithm=fedavg", "partition=iid", "clients=2000"} <= set(each)]
    done = subprocess.run([sys.executable, *words_alone], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.startswith("fedexp: clients=2000: there are only 1437")
    code, said = sweep(tmp_path, *words)
    assert code == 1
    assert "2 runs to do, 2 finished before, 4 cannot be composed" in said
    reasons = [path.read_text() for path in tmp_path.glob("*/error.txt")]
    assert len(reasons) == 2
    assert all("ConfigError" in reason for reason in reasons)


def test_an_interrupted_sweep_stops_and_says_so(tmp_path):
    process = start(tmp_path, *QUICK, "rounds=50", "local.steps=20")
    while not list(tmp_path.glob("*/metrics.csv")):
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert "the same command goes on from here" in said
    assert len(list(tmp_path.glob("*/result.json"))) == 1


def test_a_table_needs_multirun(tmp_path):
    command = [sys.executable, "-m", "fedexp", "+table=fedcat_1", *EVERYWHERE, f"output_root={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "add --multirun (-m)" in done.stderr
