"""wandb for real, offline: the file that it wrote is read back."""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pandas as pd
import pytest
import wandb
from composing import asked
from program import FEW, only_folder, result, run, start, wait_for_rounds

from fedexp.record import wandb as tracking
from fedexp.record import wandb_file
from fedexp.record.wandb import WandbTracker

OFFLINE = ["tracking=wandb", "tracking.group=sweep", "tracking.tags=[extra]", "tracking.mode=offline"]


def values(records):
    """key -> decoded value of wandb's update and item lists, the last one holding."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in records}


def read_ended(file):
    """The records of a run that has ended: wandb's own process may write the last of them just after it has said so."""
    until = time.monotonic() + 20
    while not (records := wandb_file.read(file))["exit"] and time.monotonic() < until:
        time.sleep(0.1)
    return records


def test_an_offline_run(monkeypatch, tmp_path, capfd):
    words = [*OFFLINE, "rounds=3", "algorithm=scaffold", "tracking.model=true", "pictures=true"]
    assert run(monkeypatch, tmp_path, *words) == 0
    assert "wandb sync" in capfd.readouterr().out
    (file,) = only_folder(tmp_path).glob("wandb/offline-run-*/*.wandb")
    records = read_ended(file)
    head = records["run"][0]
    assert (head.project, head.job_type, head.run_group) == ("fedexp", "scaffold", "sweep")
    assert set(head.tags) == {"digits", "dir0.1", "mcmahan_cnn", "extra"}
    assert head.run_id == result(tmp_path)["fingerprint"]
    config = values(head.config.update)
    columns = [config[name] for name in ("algorithm", "clients_per_round", "alpha", "seed")]
    assert columns == ["scaffold", 4, 0.1, 0]
    rows = [values(record.item) for record in records["history"]]
    rounds = [row for row in rows if "test_accuracy" in row]
    assert [row["round"] for row in rounds] == [1, 2, 3]
    assert rounds[-1]["bytes_total"] == result(tmp_path)["bytes_up"] + result(tmp_path)["bytes_down"]
    assert any("partition" in name for row in rows for name in row)
    assert any(metric.step_metric == "round" for metric in records["metric"])
    assert records["exit"][0].exit_code == 0
    kept = {artifact.type: artifact for artifact in records["artifact"]}
    files = {kind: {entry.path for entry in artifact.manifest.contents} for kind, artifact in kept.items()}
    tables = {f"{name}.csv" for name in ("partition", "confusion", "class_accuracy")}
    assert files == {"results": tables | {"partition.png", "confusion.png"}, "model": {"model.pt"}}


def summary(records):
    """What wandb shows of the run as a whole: its own keys, which begin with _, and pictures left out."""
    found = values(item for record in records["summary"] for item in record.update)
    return {key: value for key, value in found.items() if not key.startswith(("_", "partition/"))}


@pytest.mark.parametrize("algorithm", ["scaffold", "fedavg_pretrained"])
def test_the_summary_is_result_json_and_the_last_row(monkeypatch, tmp_path, algorithm):
    words = [*OFFLINE, *FEW, "rounds=3", "evaluate.every=2", "targets=[0.05,0.999]", f"algorithm={algorithm}"]
    words += ["algorithm.pretraining_epochs=2"] if algorithm == "fedavg_pretrained" else []
    assert run(monkeypatch, tmp_path, *words) == 0
    (file,) = only_folder(tmp_path).glob("wandb/offline-run-*/*.wandb")
    found, whole = summary(read_ended(file)), result(tmp_path)
    assert {key: found.get(key) for key in whole} == whole
    row = pd.read_csv(only_folder(tmp_path) / "metrics.csv").iloc[-1]
    own = {key: found[key] for key in found.keys() - whole.keys()}
    assert own.pop("stage", None) == row.get("stage")
    assert own == pytest.approx({key: row[key] for key in row.index if key not in (*whole, "stage")}, rel=1e-12)
    same = [key for key in row.index if key in whole]  # one name means one thing
    assert {key: row[key] for key in same} == pytest.approx({key: whole[key] for key in same}, rel=1e-12)


def test_what_was_trained_after_the_last_row_is_in_the_summary(tmp_path):
    """As of a run that is interrupted between two evaluations."""
    (sweep,) = asked("rounds=3")
    tracker = WandbTracker(mode="offline")
    tracker.start(sweep.jobs[0].config, tmp_path, "0123456789")
    tracker.log({"round": 2, "seconds": 1.5, "test_accuracy": 0.5})
    tracker.finish({"status": "interrupted", "seconds": 2.5}, failed=True)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert summary(read_ended(file)) == {"round": 2, "seconds": 2.5, "test_accuracy": 0.5, "status": "interrupted"}


@pytest.mark.parametrize("kept", [0.6, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_resumed_run_goes_on_in_the_same_wandb_run_and_loses_no_row(monkeypatch, tmp_path, kept):
    """kept: the share of wandb's file that was written when all was killed."""
    words = [*OFFLINE, *FEW, "rounds=12", "checkpoint_seconds=0"]
    job = start(tmp_path, *words)
    wait_for_rounds(tmp_path, 8, job)
    job.kill()
    job.communicate()
    (first,) = only_folder(tmp_path).glob("wandb/offline-run-*/*.wandb")
    first.write_bytes(first.read_bytes()[: int(kept * first.stat().st_size)])
    assert run(monkeypatch, tmp_path, *words) == 0
    killed, ended = sorted(only_folder(tmp_path).glob("wandb/offline-run-*/*.wandb"))
    both = wandb_file.read(killed), read_ended(ended)
    assert {record.run_id for each in both for record in each["run"]} == {result(tmp_path)["fingerprint"]}
    rows = [values(record.item) for each in both for record in each["history"]]
    rows = [row for row in rows if "test_accuracy" in row]
    table = pd.read_csv(only_folder(tmp_path) / "metrics.csv", float_precision="round_trip")
    assert [row["round"] for row in rows] == list(range(1, 13)) == table["round"].tolist()
    for name in ("test_accuracy", "test_loss", "bytes_total"):
        assert [row[name] for row in rows] == table[name].tolist()


ENVIRONMENT = {"WANDB_PROJECT": "theirs", "WANDB_ENTITY": "them", "WANDB_RUN_GROUP": "study"}


@pytest.fixture
def tracked(monkeypatch, tmp_path, capfd):
    """tracked(words, variables): where wandb's file of a run says that the run belongs: project, entity, group. None
    without a file. wandb reads the environment as it is set up, here anew, as in a process of its own."""

    def found(*words, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        wandb.teardown()  # of an earlier test's
        assert run(monkeypatch, tmp_path, *FEW, "rounds=1", *words) == 0
        assert result(tmp_path)["status"] == "finished"
        for file in only_folder(tmp_path).glob("wandb/offline-run-*/*.wandb"):
            head = read_ended(file)["run"][0]
            return head.project, head.entity, head.run_group
        assert "fedexp: wandb" not in "".join(capfd.readouterr())
        return None

    yield found
    wandb.teardown()  # the next one reads what is set then


def test_wandb_s_environment_holds_where_the_config_is_silent(tracked):
    key = {"WANDB_API_KEY": "0" * 40}  # with it auto would be online
    found = tracked("tracking=wandb", WANDB_MODE="offline", **ENVIRONMENT, **key)
    assert found == ("theirs", "them", "study")


def test_a_key_of_the_config_wins_over_wandb_s_environment(tracked):
    own = ["tracking.project=mine", "tracking.entity=me", "tracking.group=first", "tracking.mode=offline"]
    found = tracked("tracking=wandb", *own, WANDB_MODE="disabled", **ENVIRONMENT)
    assert found == ("mine", "me", "first")


def test_wandb_mode_disabled_means_no_tracking(tracked, tmp_path):
    assert tracked("tracking=wandb", WANDB_MODE="disabled") is None
    assert not (only_folder(tmp_path) / "wandb").exists()


@pytest.fixture
def server():
    """server(code): the address of an HTTP server that answers so to all; without a code of one that says nothing."""
    running = []

    def begin(code=None):
        class Answer(BaseHTTPRequestHandler):
            def do_POST(self):
                ended.wait() if code is None else self.send_response(code)
                self.end_headers()

            def log_message(self, *said):
                pass

        running.append(ThreadingHTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=running[-1].serve_forever, args=[0.01], daemon=True).start()
        return f"http://127.0.0.1:{running[-1].server_port}"

    ended = threading.Event()
    yield begin
    ended.set()
    for each in running:
        each.shutdown()
        each.server_close()


def test_a_server_answers_or_is_taken_for_dead(server, monkeypatch):
    monkeypatch.setattr(tracking, "PATIENCE", 0.5)
    assert tracking.answers(server(200)) and tracking.answers(server(401))
    for dead in (server(503), server(), "http://127.0.0.1:9", "http://no.such.place.invalid", "no address"):
        assert not tracking.answers(dead)


def test_where_wandb_s_server_is_dead_the_run_is_offline(monkeypatch, tmp_path, capfd, server):
    """With mode=online without credentials too: by itself the run would be offline."""
    monkeypatch.setenv("WANDB_BASE_URL", dead := server(503))
    assert run(monkeypatch, tmp_path, *FEW, "tracking=wandb", "tracking.mode=online", "rounds=1") == 0
    said = capfd.readouterr().out
    assert f"wandb's server {dead} does not answer within 8 s" in said and "wandb sync" in said
    assert len(list(only_folder(tmp_path).glob("wandb/offline-run-*/*.wandb"))) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "WANDB_MODE=ofline: must be one of auto, online"),
        (["tracking.mode=of"], "tracking.mode=of: must be one of"),
    ],
)
def test_another_mode_is_refused(monkeypatch, tmp_path, capfd, words, said):
    monkeypatch.setenv("WANDB_MODE", "ofline")
    assert run(monkeypatch, tmp_path, "tracking=wandb", *words) == 2
    assert said in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_runs_of_a_sweep_share_a_group_and_keep_it(monkeypatch, tmp_path):
    words = [*FEW, "tracking=wandb", "tracking.mode=offline", "rounds=1", "algorithm=fedavg,centralized"]

    def groups():
        files = tmp_path.glob("*/wandb/offline-run-*/*.wandb")
        return [read_ended(file)["run"][0].run_group for file in files]

    assert run(monkeypatch, tmp_path, "-m", *words) == 0
    first = groups()
    assert len(first) == 2 and len(set(first)) == 1
    assert re.fullmatch(r"sweep-algorithm-[0-9a-f]{6}", first[0])
    (gone,) = tmp_path.glob("*-centralized-*")
    shutil.rmtree(gone)
    assert run(monkeypatch, tmp_path, "-m", *words, "hardware.workers=2") == 0  # where it runs makes no other sweep
    assert groups() == first


def test_an_interrupted_run_is_not_a_finished_one(monkeypatch, tmp_path):
    job = start(tmp_path, *OFFLINE, *FEW, "rounds=40", "local.epochs=3")
    wait_for_rounds(tmp_path, 2, job)
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 143, said
    assert "goes on from here" in said
    (file,) = only_folder(tmp_path).glob("wandb/offline-run-*/*.wandb")
    assert read_ended(file)["exit"][0].exit_code != 0


def test_wandb_failing_mid_run_does_not_stop_training(monkeypatch, tmp_path, capfd):
    real, calls = wandb.Run.log, []

    def failing(self, row, **rest):
        calls.append(row)
        if len(calls) == 3:
            raise ConnectionError("the network is gone")
        return real(self, row, **rest)

    monkeypatch.setattr(wandb.Run, "log", failing)
    assert run(monkeypatch, tmp_path, *OFFLINE, *FEW, "rounds=4") == 0
    assert "goes on without it" in capfd.readouterr().out
    assert result(tmp_path)["status"] == "finished"
    assert len(calls) == 3  # left alone after the failure


def test_a_run_imports_neither_wandb_nor_matplotlib_where_it_needs_neither(tmp_path):
    words = [*FEW, "tracking=none", "rounds=1", "model.hidden=8", "hardware.workers=1", "pictures=false"]
    script = (
        f"import sys; sys.argv = ['fedexp', *{words}, 'output_root=out'];"
        "from fedexp.main import main; main(); assert not {'wandb', 'matplotlib'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
