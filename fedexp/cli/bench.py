"""This machine's speed, compared with hand-written PyTorch loops that do the same work, and how long runs will take.

    python -m fedexp bench                  # cases A to E
    python -m fedexp bench A D rounds=5     # some of them, with this many measured rounds of each loop
    python -m fedexp bench rounds=5         # all of them, likewise
    python -m fedexp bench paper=fedcat dataset=mnist   # a composed run, of any algorithm: here rounds=N is the run's
                                                        # own, and three are measured
    python -m fedexp bench --fast algorithm=fedcat      # the same, without the hand-written loops
    python -m fedexp bench +table=fedcat_1              # hours of a table, row by row, or of a sweep of several values:
                                                        # a round of each kind of run is measured

The plain loop is FedAvg as one would write it; the floor is the same with what is known to be fast on a CPU
(fedexp/cli/hand_written.py). The loops alternate in one process (a fresh one for each case), round by round, on the
same data, model and settings; whole rounds are timed: selection, copying, training, merging and, for fedexp, the
measures. The hand-written loops do not augment, and they know no algorithm but FedAvg: other runs are only timed.
Estimates count evaluation as often as the run evaluates. The start is what comes before the first round, without
imports and composing: data, clients, model and what the algorithm begins with. GB is peak memory: the sum over that
process and its workers of what each had at most; pages that they share count in each. The minutes are those of all of
the run's rounds.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich import box
from rich.markup import escape
from rich.table import Table

from fedexp.building import build_context, build_dataset, build_measures, build_reference, build_stages
from fedexp.cli import console
from fedexp.cli.hand_written import Floor, PlainLoop, does_the_same
from fedexp.config import launch
from fedexp.config.checks import check
from fedexp.config.compose import composed, composing
from fedexp.config.schema import section
from fedexp.engine import Context, State
from fedexp.errors import require
from fedexp.experiment import last_round
from fedexp.measure.evaluation import Evaluation
from fedexp.round import Round, begin, one_round
from fedexp.sweep.jobs import Job, sweeps

_MNIST = ["dataset=made", "partition=iid", "model=mcmahan_cnn", "clients=100", "clients_per_round=10"]
_CIFAR = ["dataset=made", "dataset.shape=[3,32,32]"]
CASES = {
    "A": [*_MNIST, "local.batch_size=50", "local.epochs=5"],
    "B": [*_MNIST, "local.batch_size=10", "local.epochs=1"],
    "C": [*_MNIST, *_CIFAR, "dataset.train=50000", "local.batch_size=50", "local.epochs=5"],
    "D": [
        *_CIFAR, "dataset.train=50000", "partition=dir0.1", "partition.construction=class_split",
        "model=simple_cnn", "clients=40", "clients_per_round=40", "local.batch_size=64", "local.epochs=10",
    ],
    "E": [
        *_CIFAR, "dataset.train=50000", "partition=iid", "model=resnet9", "clients=1000", "clients_per_round=10",
        "local.batch_size=8", "local.epochs=5",
    ],
}  # fmt: skip


class OurLoop:
    """A composed run's own rounds, stage by stage."""

    def __init__(self, config: DictConfig) -> None:
        self.config, ctx = config, build_context(config, build_dataset(config))
        self.stages = build_stages(config, ctx)
        self.reference = build_reference(config, self.stages[-1].context, lambda: False)
        settings, measures = section(config, "evaluate"), build_measures(config)
        self.evaluation = Evaluation(settings, measures, self.reference, self.stages, ctx.world, config.rounds)
        self.ctx: Context | None = None
        self.state: State = {"params": ctx.model.params()}
        self.examples = 0

    def enter(self, number: int) -> None:
        """Begin a stage, as if the previous one had ended."""
        self.stage = stage = self.stages[number]
        self._open(stage.context)
        fresh: State = stage.begin(stage.algorithm, self.state, self.ctx)
        self._open(stage.inside(fresh, self.ctx))
        if stage.counted and not self.reference.state:
            self.reference.begin(fresh["params"])
        before = {"round": self.state.get("round", 0), "stage": number}
        self.state = begin(stage.algorithm, fresh, self.ctx, before)

    def round(self) -> Round:
        """The next round of this stage; `examples`: how many it trained on."""
        if self.stage.counted:
            self.reference.follow(self.state["round"] + 1)
        done = one_round(self.stage.algorithm, self.state, self.ctx)
        self.state, self.examples = done.after, done.examples
        return done

    def rounds(self, number: int) -> int:
        """The number of a stage's rounds in the whole run."""
        before = number and self.stages[number - 1].counted and last_round(self.stages, number - 1, self.config.rounds)
        return last_round(self.stages, number, self.config.rounds) - before

    def close(self) -> None:
        self._close()
        self.reference.close()

    def _close(self) -> None:
        if self.ctx is not None:
            self.ctx.engine.close()

    def _open(self, ctx: Context) -> None:
        """Make `ctx` the one to train in, with an engine of its own."""
        if ctx is not self.ctx:
            self._close()
            self.ctx = ctx.ready()


def seconds(work: Callable[[], Any]) -> float:
    """The wall time of `work`, such as one round."""
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(config: DictConfig, rounds: int, fast: bool) -> dict[str, Any]:
    """Samples per second of each loop, medians over `rounds` alternating rounds after one to warm up, and the seconds
    of the start, of a round and of the whole run. Prints what it is doing, since each part may take minutes.

    In a run of several stages, speeds and the round are those of the last stage, the start is that of the first, and
    the run is the whole.

    plain, floor: how many times as fast as that loop fedexp is (lowest, median, highest); None if it cannot do the run.
    speed: fedexp's samples per second (median). memory: peak, in gigabytes. run: seconds of the whole run.
    """
    launch.hide_gpus([config.hardware.device])
    began = time.perf_counter()
    ours = OurLoop(config)
    ours.enter(0)
    start = time.perf_counter() - began
    print(f"  started in {start:.1f} s", flush=True)
    by_hand = [] if fast else hand_written(config, ours.ctx)
    run = 0.0
    for number in range(len(ours.stages)):
        if number:
            print(f"  stage {number + 1} of {len(ours.stages)}", flush=True)
            ours.enter(number)
        speeds, a_round, evaluation = _one_stage(ours, by_hand, rounds)
        run += ours.rounds(number) * (a_round + evaluation / config.evaluate.every)
    memory = peak_memory()
    ours.close()
    for loop in by_hand:
        loop.close()
    ratios = {type(loop).__name__: sorted(each[-1] / each[k] for each in speeds) for k, loop in enumerate(by_hand)}
    found = {name: (each[0], statistics.median(each), each[-1]) for name, each in ratios.items()}
    return {
        "plain": found.get("PlainLoop"), "floor": found.get("Floor"),
        "speed": statistics.median(each[-1] for each in speeds), "memory": memory, "run": run,
        "start": start, "round": a_round,
    }  # fmt: skip


def _one_stage(ours: OurLoop, by_hand: list[PlainLoop], rounds: int) -> tuple[list[list[float]], float, float]:
    """Samples a second of each loop, fedexp's last, round by round; fedexp's seconds a round, and an evaluation."""
    began = time.perf_counter()
    done = ours.round()
    evaluation = seconds(lambda: ours.evaluation.row(ours.stage, done)) if ours.stage.counted else 0.0
    for loop in by_hand:
        loop.round()
    print(f"  each loop once, to warm up: {time.perf_counter() - began:.1f} s", flush=True)
    loops: list[Any] = [*by_hand, ours]
    speeds: list[list[float]] = []
    times: list[float] = []
    for number in range(rounds):
        first = number % len(loops)  # another one each time, so that none is always measured behind the same other
        took = {loop: seconds(loop.round) for loop in [*loops[first:], *loops[:first]]}
        speeds.append([loop.examples / took[loop] for loop in loops])
        times.append(took[ours])
        print(f"  round {number + 1} of {rounds}: {times[-1]:.2f} s", flush=True)
    return speeds, statistics.median(times), evaluation


def hand_written(config: DictConfig, ctx: Context) -> list[PlainLoop]:
    """The loops that can do this run: the plain one in full precision, the floor on a CPU."""
    if not does_the_same(config):
        return []
    loops = [PlainLoop(config, ctx)] if ctx.hardware.precision in ("float32", "float64") else []
    return [*loops, Floor(config, ctx)] if ctx.world.device.type == "cpu" else loops


def peak_memory() -> float:
    """The sum of the peak memory of this process and of each of its children, in gigabytes; nan without /proc."""
    total = 0.0
    for process in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        status = Path(f"/proc/{process}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        total += next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), float("nan"))
    return total / 1e9


def jobs_and_rounds(words: list[str]) -> tuple[dict[str, list[str]], int]:
    """The overrides of each case, and how many rounds are measured. Raises ConfigError for a wrong number of rounds."""
    measured = [word for word in words if word.startswith("rounds=")]
    jobs = chosen([word for word in words if word not in measured], CASES)
    if "composed" in jobs:
        return {"composed": words}, 3
    rounds = measured[-1].partition("=")[2] if measured else "3"
    require(rounds.isdecimal() and int(rounds) >= 1, "rounds", rounds, "must be a number of at least 1")
    return jobs, int(rounds)


def chosen(words: list[str], cases: dict[str, list[str]]) -> dict[str, list[str]]:
    """The overrides of each of the cases that are named; of all if nothing is; or of a composed run."""
    names = [word for word in words if word in cases]
    others = [word for word in words if word not in cases]
    if others and not names:
        return {"composed": others}
    return {name: [*cases[name], *others] for name in names or cases}


def main(words: list[str]) -> None:
    """Measure what the words name and print the table."""
    fast, words = "--fast" in words, [word for word in words if word != "--fast"]
    jobs, rounds = jobs_and_rounds(words)
    if "composed" in jobs:
        with composing():
            (sweep,) = sweeps(["tracking=none", *words])
        sweep.check_program()
        if sweep.table is not None or len(sweep.jobs) > 1:
            print_hours(sweep.jobs)
            return
    compared = [] if fast else ["x plain", "x floor"]
    columns = ["case", "start s", "round s", "samples/s", *compared, "GB", "rounds", "minutes"]
    title = f"medians over {rounds} rounds of each loop, in turns; torch {torch.__version__}"
    table = new_table(title, columns)
    for name, job in jobs.items():
        config = composed(["tracking=none", *job])
        print(f"{name}: {config.clients:,} clients, {config.rounds} rounds, {rounds} measured", flush=True)
        found = in_a_fresh_process(config, rounds, fast)
        ratios = [] if fast else [found["plain"], found["floor"]]
        table.add_row(
            name, f"{found['start']:,.1f}", f"{found['round']:,.3f}", f"{found['speed']:,.0f}",
            *("-" if each is None else f"{each[1]:.2f}" for each in ratios),
            f"{found['memory']:.1f}", f"{config.rounds:,}", f"{found['run'] / 60:,.1f}",
        )  # fmt: skip
        if not fast:
            print(f"{name}: {_range(ratios[0])} times the plain loop, {_range(ratios[1])} the floor", flush=True)
    console(80).print(table)


def in_a_fresh_process(config: DictConfig, rounds: int, fast: bool) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(measure, config, rounds, fast).result()


def print_hours(jobs: list[Job]) -> None:
    """Hours of each row of a table, or of each run of a sweep, one run after another on this machine."""
    known: dict[tuple[str, int], float] = {}
    rows: dict[str, list[float]] = {}
    for job in jobs:
        if job.plain is None:
            raise job.error
        check(job.config)
        kind = job.kind, job.plain["rounds"]
        if kind not in known:
            print(f"a round of {job.name}", flush=True)
            known[kind] = in_a_fresh_process(job.config, 1, fast=True)["run"]
        row = job.cell.row if job.cell is not None else job.name
        rows.setdefault(row, []).append(known[kind])
    title = f"hours on this machine, one run after another, torch {torch.__version__}"
    table = new_table(title, ["row", "runs", "hours"])
    rows["all"] = [value for values in rows.values() for value in values]
    for row, values in rows.items():
        table.add_row(escape(row), str(len(values)), f"{sum(values) / 3600:,.2f}")
    console(80).print(table)


def new_table(title: str, columns: list[str]) -> Table:
    """An empty table that fits into 80 columns; the first column has names, the others numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number > 0, overflow="fold", justify="right" if number else "left")
    return table


def _range(values: tuple[float, float, float] | None) -> str:
    return "-" if values is None else f"{values[1]:.2f} ({values[0]:.2f} to {values[2]:.2f})"
