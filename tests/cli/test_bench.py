"""The hand-written loops do what fedexp does, or are left out; each loop counts its own examples."""

import itertools
import multiprocessing
import re

import pytest
import torch
from composing import asked, checked, composed
from program import FEW
from second_device import DEVICE, second_device

from fedexp.cli import bench, carry_out
from fedexp.cli.bench import CASES, OurLoop, jobs_and_rounds, measure, peak_memory
from fedexp.cli.hand_written import Floor, PlainLoop, does_the_same
from fedexp.engine import Hardware
from fedexp.errors import ConfigError
from fedexp.measure.reference import Reference

SMALL = ["model.hidden=16", "partition=iid", "clients=10", "clients_per_round=10", "hardware=cpu", "tracking=none"]


def config(*words):
    return composed(*SMALL, *words)


# Ten clients of 28 or 29 examples.
SMALL_CLIENTS = [*FEW, "dataset.train=287", "partition=iid"]


@pytest.mark.parametrize(
    ("words", "examples"),
    [
        (["local.epochs=2", "local.batch_size=10"], 2 * 287),
        (["local.steps=2", "local.batch_size=10"], 2 * 10 * 10),
        (["local.steps=4", "local.batch_size=10"], 287 + 10 * 10),  # three steps are an epoch
        (["local.epochs=2", "local.batch_size=10", "local.drop_last=true"], 2 * 20 * 10),
        (["local.steps=3", "local.batch_size=10", "local.drop_last=true", "local.lr_decay=0.5"], 30 * 10),
        (["local.steps=5", "local.batch_size=4", "local.max_grad_norm=0.1", "local.weight_decay=0.1"], 20 * 10),
        (
            ["local.steps=5", "local.batch_size=4", "local.optimizer=adam", "local.lr=0.001",
             "hardware.precision=float64"],
            20 * 10,
        ),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)  # fmt: skip
def test_the_hand_written_loops_do_the_same_work(words, examples):
    ours = OurLoop(config(*SMALL_CLIENTS, "hardware.workers=1", *words))
    ours.enter(0)
    by_hand = [PlainLoop(ours.config, ours.ctx), Floor(ours.config, ours.ctx)]
    before = ours.state["params"]["head.weight"].clone()
    for loop in by_hand:
        for name, value in ours.state["params"].items():
            loop.weights[name].copy_(value)
    for _ in range(2):  # all clients train in each
        for loop in (ours, *by_hand):
            loop.round()
            assert loop.examples == examples
    for loop in (ours, *by_hand):
        loop.close()
    for loop in by_hand:
        assert not torch.allclose(loop.weights["head.weight"], before, atol=1e-4)
        for name, value in ours.state["params"].items():
            torch.testing.assert_close(loop.weights[name], value, atol=2e-5, rtol=1e-3)


def test_the_plain_loop_works_on_another_device(monkeypatch):
    """Its data lie where the run's do; it ends as it does on the CPU."""

    def trained():
        ours = OurLoop(config(*SMALL_CLIENTS, "hardware.engine=vectorized"))
        ours.enter(0)
        loop = PlainLoop(ours.config, ours.ctx)
        loop.round()
        return loop

    torch.manual_seed(0)
    expected = trained()
    monkeypatch.setattr(Hardware, "torch_device", DEVICE)
    with second_device():
        torch.manual_seed(0)
        there = trained()
        assert {value.device.type for value in [there.x, *there.weights.values()]} == {DEVICE.type}
        for name, value in expected.weights.items():
            torch.testing.assert_close(there.weights[name].cpu(), value)


@pytest.mark.parametrize(
    "words",
    ["algorithm=fedprox", "+dataset.transform.crop=8", "+dataset.transform.flip=true", "+dataset.transform.rotate=5",
     "algorithm=clusamp", "server_optimizer=adam", "server_optimizer.lr=0.5", "compression=top_k"],
)  # fmt: skip
def test_what_the_hand_written_loops_do_not_do_is_only_timed(words):
    assert does_the_same(config())
    assert not does_the_same(config(words))


def test_the_plain_loop_has_full_precision_only():
    found = measure(config("hardware.precision=bfloat16", "hardware.workers=1", "local.steps=1"), 1, fast=False)
    assert found["plain"] is None and found["floor"] is not None


def test_the_reference_s_training_is_timed_too(monkeypatch):
    followed = []
    follow = Reference.follow
    monkeypatch.setattr(Reference, "follow", lambda self, number: followed.append(number) or follow(self, number))
    found = measure(config("reference=centralized", "hardware.workers=1", "local.steps=1"), 2, fast=True)
    assert followed == [1, 2, 3] and found["run"] > 0


def test_which_cases_and_how_many_rounds_of_them():
    assert jobs_and_rounds([]) == (CASES, 3)
    assert jobs_and_rounds(["rounds=5"]) == (CASES, 5)
    assert jobs_and_rounds(["D", "local.epochs=2", "rounds=4"]) == ({"D": [*CASES["D"], "local.epochs=2"]}, 4)
    assert jobs_and_rounds(["dataset=made", "rounds=4"]) == ({"composed": ["dataset=made", "rounds=4"]}, 3)
    for wrong in ("abc", "0", "-1", "1.5", "²"):
        with pytest.raises(ConfigError, match=f"rounds={wrong}: must be a number of at least 1"):
            jobs_and_rounds(["A", f"rounds={wrong}"])


SWEEPS = [
    (["+table=fedcat_1"], "table=fedcat_1: asks for several runs, and this program takes one: give a run's own keys"),
    (["+scale=quick"], "scale=quick: asks for several runs"),
    (["algorithm=fedavg,fedprox"], "algorithm=fedavg,fedprox: asks for several runs, and this program takes one: give"),
    (["seed=range(3)"], "seed=range(3): asks for several runs"),
    (["-m", "seed=1"], "-m: asks for several runs, and this program takes one: leave it out"),
]


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        *((program, *case) for program in ("partition", "study") for case in SWEEPS),
        ("bench", ["A", *SWEEPS[0][0]], "table="),
    ],
)
def test_the_programs_of_one_run_refuse_a_sweep(capsys, program, words, said):
    assert carry_out(program, words) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"fedexp: {said}")
    assert output.out == ""


def test_what_a_run_refuses_is_not_timed(capfd):
    assert carry_out("bench", [*SMALL, *FEW, "algorithm=scaffold", "privacy=dp_fedavg"]) == 2
    assert "privacy=dp_fedavg: covers the mean of bounded updates alone" in capfd.readouterr().err


def test_a_cell_of_a_table_is_one_run():
    """Its words say which table and scale it is of."""
    words = asked("+table=fedcat_3", 'table.select="cifar10 dir0.1"', "+scale=quick", "tracking=none")[0].jobs[0].words
    config = checked(*words)
    assert (config.table.name, config.scale.name, config.rounds) == ("fedcat_3", "quick", 5)


# Given to `exec`, since a function of this file would have the new process import all that this file does.
HOLD = "held = b'x' * 200_000_000; pipe.send(len(held)); pipe.recv()"


def test_peak_memory_is_the_sum_over_processes():
    alone = peak_memory()
    assert 0.05 < alone < 20
    processes, pipes = [], []
    for _ in range(2):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=exec, args=(HOLD, {"pipe": theirs}), daemon=True)
        process.start()
        processes.append(process)
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.recv() == 200_000_000
    assert peak_memory() - alone > 2 * 0.2
    for pipe in pipes:
        pipe.send(None)
    for process in processes:  # other tests may have left children that stay
        process.join(60)
    assert peak_memory() - alone < 0.2  # it falls again


def test_a_run_s_time_is_that_of_its_stages_rounds_and_evaluations(monkeypatch):
    """A clock that ticks once a look: each thing that is timed takes a second."""
    ticks = itertools.count()
    monkeypatch.setattr(bench.time, "perf_counter", lambda: float(next(ticks)))
    found = measure(config("local.steps=2", "hardware.workers=1", "rounds=8", "evaluate.every=4"), 2, fast=False)
    assert found["run"] == 8 * (1 + 1 / 4)
    assert found["round"] == 1 and found["start"] >= 1  # others look at the clock as well while a run is built
    assert found["plain"] == found["floor"] == (1, 1, 1)
    assert found["speed"] == 2 * 10 * 10
    stages = ["algorithm=fedavg_pretrained", "algorithm.pretraining_epochs=5", "algorithm.pretraining_batch_size=500"]
    found = measure(config(*stages, "local.steps=1", "hardware.workers=1", "rounds=8"), 1, fast=True)
    assert found["run"] == 5 * 1 + 8 * (1 + 1)
    assert found["plain"] is None and found["floor"] is None


def test_the_command_says_what_it_measures_and_prints_its_table(capfd):
    """From this process and from the one that measures: a large run's start, or a round, may take minutes."""
    assert carry_out("bench", [*SMALL, *FEW, "local.steps=2", "hardware.workers=1", "rounds=8"]) == 0
    said = capfd.readouterr().out
    lines = ["composed: 10 clients, 8 rounds", "started in", "warm up", "round 3 of 3", "times the plain loop"]
    assert re.search(".*".join(lines), said, re.DOTALL)
    header, _, row = [line.split() for line in said.splitlines() if line.strip()][-3:]
    assert " ".join(header) == "case start s round s samples/s x plain x floor GB rounds minutes"
    numbers = [float(each.replace(",", "")) for each in row[1:]]
    assert row[0] == "composed" and len(numbers) == 8 and min(numbers) >= 0 and numbers[6] == 8
    assert max(map(len, said.splitlines()[-6:])) <= 80


@pytest.fixture
def here(monkeypatch):
    """Measured in this process, which has imported all that a fresh one would import."""
    monkeypatch.setattr(bench, "in_a_fresh_process", measure)


def test_without_the_hand_written_loops_stage_by_stage(here, capfd):
    words = [*SMALL, "algorithm=fedavg_pretrained", "local.steps=1", "hardware.workers=1", "rounds=8"]
    assert carry_out("bench", ["--fast", *words]) == 0
    said = capfd.readouterr().out
    lines = ["composed: 10 clients, 8 rounds", "started in", "warm up", "round 3 of 3", "stage 2 of 2", "round 3 of 3"]
    assert re.search(".*".join(lines), said, re.DOTALL)
    assert "start s" in said and "GB" in said and "plain" not in said


def test_a_sweep_s_hours_are_told_run_by_run(here, capfd):
    """Each kind of run is measured once: seeds are alike."""
    words = [*SMALL, "algorithm=fedavg,fedprox", "seed=0,1", "local.steps=1", "hardware.workers=1", "rounds=2"]
    assert carry_out("bench", words) == 0
    said = capfd.readouterr().out
    assert said.count("a round of") == 2
    assert re.search(r"all +4 ", said)
