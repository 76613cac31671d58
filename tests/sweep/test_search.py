"""Other sweepers of Hydra's search by a number of result.json."""

import math

import pytest
import yaml
from options import WORDS
from program import run

from fedexp.errors import ConfigError
from fedexp.record.result import value

RESULT = {"best_accuracy": 0.5, "status": "finished", "at_chance": True, "rounds_to": {"0.4": 3, "0.9": None}}
SMALLEST = [word for word in WORDS if not word.startswith(("dataset=digits", "rounds="))]


def test_a_metric_is_any_number_of_the_result():
    assert value(RESULT, "best_accuracy") == 0.5
    assert value(RESULT, "rounds_to.0.4") == 3.0
    assert value(RESULT, "rounds_to.0.9") == math.inf, "worse than any trial that reached the target"
    assert value({"simulated_seconds_to": {"0.4": 1.5}}, "simulated_seconds_to.0.4") == 1.5
    for metric in ("status", "at_chance", "rounds_to.0.7", "best_acuracy"):
        with pytest.raises(ConfigError, match=rf"metric={metric}: is not a number in this run's result\.json"):
            value(RESULT, metric)


def test_optuna_finds_the_best_of_its_trials(monkeypatch, tmp_path, capfd):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    words = ["-m", *SMALLEST, "rounds=1", "hardware.workers=1", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3",
             "hydra.sweeper.n_jobs=1", "hydra.sweeper.direction=maximize", "hydra.sweeper.sampler.seed=1",
             "local.lr=interval(0.001,0.5)", f"hydra.sweep.dir={tmp_path}/search"]  # fmt: skip
    assert run(monkeypatch, tmp_path / "out", *words) == 2
    assert "metric=null: must name the number to optimize" in "".join(capfd.readouterr())
    assert run(monkeypatch, tmp_path / "out", *words, "metric=final_accuracy") == 0
    found = yaml.safe_load((tmp_path / "search/optimization_results.yaml").read_text())
    results = [yaml.safe_load(path.read_text()) for path in (tmp_path / "out").glob("*/result.json")]
    assert len(results) == 3
    assert found["best_value"] == max(result["final_accuracy"] for result in results)
    assert 0.001 <= found["best_params"]["local.lr"] <= 0.5
