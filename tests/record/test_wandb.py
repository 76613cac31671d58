"""wandb for real, offline: the file that it wrote is read back."""

import json
import signal
import subprocess
import sys

import wandb_file
from program import only_folder, result, run, start
from test_run import wait_for_rounds

OFFLINE = ["tracking=wandb", "tracking.group=sweep", "tracking.tags=[extra]", "tracking.mode=offline"]


def values(records):
    """key -> decoded value of wandb's update and item lists, the last one holding."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in records}


def test_an_offline_run(monkeypatch, tmp_path, capfd):
    assert run(monkeypatch, tmp_path, *OFFLINE, "rounds=3", "algorithm=scaffold") == 0
    assert "wandb sync" in capfd.readouterr().out
    (file,) = only_folder(tmp_path).glob("wandb/offline-run-*/*.wandb")
    records = wandb_file.read(file)
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
    summary = values(item for record in records["summary"] for item in record.update)
    for name in ("final_accuracy", "best_accuracy", "status"):
        assert summary[name] == result(tmp_path)[name]
    assert any(metric.step_metric == "round" for metric in records["metric"])
    assert records["exit"][0].exit_code == 0


def test_a_resumed_run_goes_on_in_the_same_wandb_run(monkeypatch, tmp_path):
    words = [*OFFLINE, "rounds=20", "local.epochs=3", "checkpoint_seconds=0"]
    job = start(tmp_path, *words)
    wait_for_rounds(tmp_path, 4, job)
    job.kill()
    job.communicate()
    assert run(monkeypatch, tmp_path, *words) == 0
    files = sorted(only_folder(tmp_path).glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    identities = {record.run_id for file in files for record in wandb_file.read(file)["run"]}
    assert identities == {result(tmp_path)["fingerprint"]}
    resumed = [values(record.item) for record in wandb_file.read(files[1])["history"]]
    rounds = [row["round"] for row in resumed if "test_accuracy" in row]
    assert rounds == list(range(rounds[0], 21))
    assert len(resumed) == len(rounds), "the partition's picture is there already"
    assert rounds[0] >= 4


def test_an_interrupted_run_is_not_a_finished_one(monkeypatch, tmp_path):
    job = start(tmp_path, *OFFLINE, "rounds=40", "local.epochs=3")
    wait_for_rounds(tmp_path, 2, job)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    (file,) = only_folder(tmp_path).glob("wandb/offline-run-*/*.wandb")
    assert wandb_file.read(file)["exit"][0].exit_code != 0


def test_wandb_failing_mid_run_does_not_stop_training(monkeypatch, tmp_path, capfd):
    import wandb

    real, calls = wandb.Run.log, []

    def failing(self, row, **rest):
        calls.append(row)
        if len(calls) == 3:
            raise ConnectionError("the network is gone")
        return real(self, row, **rest)

    monkeypatch.setattr(wandb.Run, "log", failing)
    assert run(monkeypatch, tmp_path, *OFFLINE, "rounds=4") == 0
    assert "goes on without it" in capfd.readouterr().out
    assert result(tmp_path)["status"] == "finished"
    assert len(calls) == 3  # left alone after the failure


def test_tracking_none_imports_no_wandb(tmp_path):
    script = (
        "import sys; sys.argv = ['fedexp', 'tracking=none', 'rounds=1', 'model.hidden=8', 'output_root=out'];"
        "from fedexp.main import main; main(); assert 'wandb' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
