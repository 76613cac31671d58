"""The plain loop does what fedexp does, or the bench refuses; each loop counts its own examples."""

import multiprocessing
import subprocess
import sys

import pytest
import torch
from hydra import initialize_config_dir

from fedexp.bench import CASES, OurLoop, PlainLoop, jobs_and_rounds, measure, peak_memory, refuse_other_work
from fedexp.compose import Composer
from fedexp.errors import ConfigError
from fedexp.main import CONF

SMALL = ["model.hidden=16", "partition=iid", "clients=10", "clients_per_round=10", "hardware=cpu", "tracking=none"]


def config(*words):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return Composer()([*SMALL, *words])


@pytest.mark.parametrize(
    ("words", "examples"),
    [
        (["local.epochs=2", "local.batch_size=50"], 2 * 1437),
        (["local.steps=2", "local.batch_size=50"], 2 * 50 * 10),
        (["local.steps=4", "local.batch_size=50"], 1437 + 50 * 10),  # three steps are an epoch
        (["local.epochs=2", "local.batch_size=50", "local.drop_last=true"], 2 * 100 * 10),
        (["local.steps=3", "local.batch_size=50", "local.drop_last=true", "local.lr_decay=0.5"], 150 * 10),
        (["local.steps=5", "local.max_grad_norm=0.1", "local.weight_decay=0.1"], 50 * 10),
        (["local.steps=5", "local.optimizer=adam", "local.lr=0.001", "hardware.precision=float64"], 50 * 10),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_the_plain_loop_does_the_same_work(words, examples):
    ours = OurLoop(config("hardware.workers=1", *words))
    plain = PlainLoop(ours.config, ours.engine)
    plain.weights = {name: value.clone() for name, value in ours.state["params"].items()}
    before = plain.weights["head.weight"]
    for _ in range(2):  # all clients train in each
        ours.round(), plain.round()
        assert plain.examples == ours.examples == examples
    ours.engine.close()
    assert not torch.allclose(plain.weights["head.weight"], before, atol=1e-4)
    for name, value in ours.state["params"].items():
        torch.testing.assert_close(plain.weights[name], value, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["algorithm=fedprox"], "algorithm=fedprox"),
        (["+dataset.transform.crop=8"], "dataset.transform.crop=8"),
        (["+dataset.transform.flip=true"], "dataset.transform.flip=True"),
        (["+dataset.transform.rotate=5"], "dataset.transform.rotate=5"),
        (["hardware.precision=bfloat16"], "hardware.precision=bfloat16"),
    ],
)
def test_what_the_plain_loop_does_not_do_is_refused(words, key):
    with pytest.raises(ConfigError, match=f"{key}: .*the plain loop"):
        refuse_other_work(config(*words))


def test_which_cases_and_how_many_rounds_of_them():
    assert jobs_and_rounds([]) == (CASES, 3)
    assert jobs_and_rounds(["rounds=5"]) == (CASES, 5)
    assert jobs_and_rounds(["D", "local.epochs=2", "rounds=4"]) == ({"D": [*CASES["D"], "local.epochs=2"]}, 4)
    assert jobs_and_rounds(["dataset=made", "rounds=4"]) == ({"composed": ["dataset=made", "rounds=4"]}, 3)
    for wrong in ("abc", "0", "-1", "1.5"):
        with pytest.raises(ConfigError, match=f"rounds={wrong}: must be a number of at least 1"):
            jobs_and_rounds(["A", f"rounds={wrong}"])


def _hold(megabytes, pipe):
    held = torch.ones(megabytes, 250_000)  # a million bytes a row
    pipe.send(len(held))
    pipe.recv()


def test_peak_memory_is_the_sum_over_processes():
    alone = peak_memory()
    assert 0.05 < alone < 20
    pipes = []
    for _ in range(2):
        ours, theirs = multiprocessing.Pipe()
        multiprocessing.get_context("spawn").Process(target=_hold, args=(200, theirs), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.recv() == 200
    assert peak_memory() - alone > 2 * 0.2
    for pipe in pipes:
        pipe.send(None)
    for child in multiprocessing.active_children():
        child.join(60)
    assert peak_memory() - alone < 0.2  # it falls again


def test_rates_are_of_one_round_each():
    found = measure(config("local.steps=2", "hardware.workers=1", "rounds=7"), rounds=1)
    assert found["ratio"] == found["lowest"] == found["highest"] == found["ours"] / found["plain"]
    assert found["run"] == pytest.approx(7 * 20 * 10 / found["ours"])


def test_the_command_prints_its_table_and_says_what_is_wrong():
    words = [sys.executable, "-m", "fedexp.bench", *SMALL, "local.steps=2", "hardware.workers=1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "composed: " in done.stdout and "times the plain loop" in done.stdout and "(60" in done.stdout
    done = subprocess.run([*words, "algorithm=fedprox"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.startswith("fedexp: algorithm=fedprox: the plain loop")
