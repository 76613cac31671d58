"""TensorBoard, read back; and a tracker of one's own."""

import pandas as pd
import pytest
from options import WORDS
from program import only_folder, result, run

from fedexp.record import tensorboard
from fedexp.record.tensorboard import TensorboardTracker

SMALLEST = [*(word for word in WORDS if not word.startswith("tracking=")), "hardware.workers=1"]

OWN = """
from fedexp.record.tracker import Tracker
class Mine(Tracker):
    def __init__(self, place):
        self.place = open(place, "w")
    def start(self, config, folder, fingerprint):
        print("start", fingerprint, file=self.place)
    def log(self, row):
        print("round", row["round"], row["test_accuracy"], file=self.place)
    def finish(self, result, failed):
        print("finish", result["status"], failed, file=self.place, flush=True)
"""


def test_every_number_by_round_and_the_pictures_at_the_end(monkeypatch, tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert run(monkeypatch, tmp_path, *SMALLEST, "rounds=2", "tracking=tensorboard", "pictures=true") == 0
    found = loader.EventAccumulator(str(only_folder(tmp_path) / "tensorboard"))
    found.Reload()
    table = pd.read_csv(only_folder(tmp_path) / "metrics.csv")
    for name in ("test_accuracy", "local_loss", "bytes_total", "cohort_emd"):
        events = found.Scalars(name)
        assert [event.step for event in events] == [1, 2]
        assert [event.value for event in events] == pytest.approx(table[name].tolist())
    assert {"partition", "confusion"} <= {*found.Tags()["images"]}
    assert found.Scalars("end/final_accuracy")[0].value == pytest.approx(result(tmp_path)["final_accuracy"])


def test_an_accuracy_of_0_is_written_too(monkeypatch, tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(monkeypatch, tmp_path, *SMALLEST, "rounds=1", "local.lr=1e30", "tracking=tensorboard")
    assert (result(tmp_path)["status"], result(tmp_path)["final_accuracy"]) == ("diverged", 0)
    found = loader.EventAccumulator(str(only_folder(tmp_path) / "tensorboard"))
    found.Reload()
    assert [found.Scalars(f"end/{name}_accuracy")[0].value for name in ("final", "best")] == [0, 0]


def test_without_the_package_it_is_refused_before_training(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    assert run(monkeypatch, tmp_path, *SMALLEST, "tracking=tensorboard") == 2
    assert "tracking=tensorboard: needs an extra of its own: pip install" in capfd.readouterr().err


def test_a_disk_that_fails_ends_the_tracking_and_not_the_run(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    tracker = TensorboardTracker()
    tracker._folder = tmp_path / "a file"
    tracker._folder.write_text("in the way")
    for number in (1, 2):
        tracker.log({"round": number, "test_accuracy": 0.5})
    tracker.finish({}, failed=False)
    assert capsys.readouterr().out.count("the run goes on without it") == 1


def test_a_tracker_of_one_s_own(monkeypatch, tmp_path):
    (tmp_path / "own_tracker.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["rounds=2", "tracking=own", "tracking._target_=own_tracker.Mine", f"+tracking.place={tmp_path / 'log'}"]
    assert run(monkeypatch, tmp_path / "out", *SMALLEST, *words) == 0
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [line[0] for line in lines] == ["start", "round", "round", "finish"]
    found = result(tmp_path / "out")
    assert lines[0][1] == found["fingerprint"] and float(lines[2][2]) == found["final_accuracy"]
    assert lines[3][1:] == ["finished", "False"]
