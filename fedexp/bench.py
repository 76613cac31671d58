"""This machine's speed against a plain hand-written PyTorch loop that does the same work.

    python -m fedexp.bench                  # cases A to E
    python -m fedexp.bench A D rounds=5     # some of them, with so many measured rounds of each loop
    python -m fedexp.bench rounds=5         # all of them, likewise
    python -m fedexp.bench paper=fedcat dataset=mnist   # a composed run of FedAvg, and how long it will take:
                                                        # here rounds=N is the run's own, and three are measured

Both loops alternate in one process (a fresh one for each case), round by round, on the same data, model and
settings; whole rounds are timed: selection, copying, training, merging and, for fedexp, the measures. The plain
loop holds its data as normalised tensors (no DataLoader) and uses all cores through PyTorch's own threads. It does
all local settings; other algorithms than FedAvg, augmentation and reduced precision it does not, and they are
refused. Peak memory is the sum over that process and fedexp's workers of what each had at most; pages that they
share count in each.
"""

import copy
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from torch import nn

from fedexp.build import build_algorithm, build_dataset, build_model, build_world, construct
from fedexp.engine import Engine
from fedexp.engine.plan import batches
from fedexp.errors import require
from fedexp.main import answer_help, composed, one_line_errors
from fedexp.measure.cohort import cohort_measures
from fedexp.measure.communication import traffic
from fedexp.randomness import generator

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


def plain_net(config: DictConfig, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model as one would write it: ordinary layers, ReLU before pooling."""
    net = construct(config.model, shape=shape, classes=classes)
    for layers in [module for module in net.modules() if isinstance(module, nn.Sequential)]:
        for first in range(len(layers) - 1):
            if isinstance(layers[first], nn.MaxPool2d) and isinstance(layers[first + 1], nn.ReLU):
                layers[first], layers[first + 1] = layers[first + 1], layers[first]
    return net


def refuse_other_work(config: DictConfig) -> None:
    """Raise ConfigError for a run that the plain loop does not do."""
    algorithm, precision = config.algorithm, config.hardware.precision
    require(
        algorithm["_target_"] == "fedexp.algorithms.fedavg.FedAvg", "algorithm", algorithm.get("name"),
        "the plain loop is FedAvg's; use algorithm=fedavg",
    )  # fmt: skip
    for name in ("crop", "flip", "rotate"):
        value = OmegaConf.select(config, f"dataset.transform.{name}")
        require(not value, f"dataset.transform.{name}", value, "the plain loop does not augment")
    full = ("float32", "float64")
    require(precision in full, "hardware.precision", precision, f"the plain loop has only {' and '.join(full)}")


class PlainLoop:
    """FedAvg by hand: one client after another, all cores through PyTorch's threads. `examples`: the last round's."""

    def __init__(self, config: DictConfig, engine: Engine) -> None:
        world = engine.world
        self.config, self.local, self.dtype = config, engine.local, world.dtype
        self.net = plain_net(config, world.shape, world.classes).to(world.device, world.dtype).train()
        self.rounds = self.examples = 0
        self.weights = copy.deepcopy(self.net.state_dict())
        self.x = torch.cat([world.prepare(rows) for rows in torch.arange(len(world.y)).split(5000)])
        self.y, self.clients = world.y, [world.of(client) for client in range(world.clients)]

    def round(self) -> None:
        self.examples = 0
        cohort = torch.randperm(len(self.clients))[: self.config.clients_per_round].tolist()
        total = sum(len(self.clients[client]) for client in cohort)
        merged = {name: torch.zeros_like(value, dtype=self.dtype) for name, value in self.weights.items()}
        for client in cohort:
            self.net.load_state_dict(self.weights)
            self._train(client)
            share = len(self.clients[client]) / total
            for name, value in self.net.state_dict().items():
                merged[name] += share * value
        self.weights = {name: value.to(self.weights[name].dtype) for name, value in merged.items()}
        self.rounds += 1

    def _train(self, client: int) -> None:
        x, y, local = self.x[self.clients[client]], self.y[self.clients[client]], self.local
        lr, decay, weights = local.rate(self.rounds), local.weight_decay, list(self.net.parameters())
        if local.optimizer == "adam":
            optimizer = torch.optim.Adam(weights, lr=lr, weight_decay=decay)
        else:
            optimizer = torch.optim.SGD(weights, lr=lr, weight_decay=decay, momentum=local.momentum)
        for batch in batches(self.config.seed, self.rounds, client, len(y), local):
            optimizer.zero_grad()
            F.cross_entropy(self.net(x[batch]), y[batch]).backward()
            if local.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(weights, local.max_grad_norm)
            optimizer.step()
            self.examples += len(batch)


class OurLoop:
    """The composed run's own rounds, measures included, evaluation on the test set not. `examples`: the last one's."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.algorithm = build_algorithm(config)
        world = self.algorithm.adapt(build_world(config, build_dataset(config)))
        model = build_model(config, world)
        local, hardware = OmegaConf.to_object(config.local), OmegaConf.to_object(config.hardware)
        self.engine = Engine(model, world, local, hardware, config.seed)
        self.state = self.algorithm.init(world, model, model.params())
        self.examples = 0

    def round(self) -> None:
        gen = generator(self.config.seed, "round", self.state["round"])
        self.state = self.algorithm.round(self.state, self.engine.world, self.engine, gen)
        exchanges = self.engine.drain()
        traffic(exchanges)
        self.examples = sum(each.examples for each in exchanges)
        cohort_measures(
            exchanges, self.engine.model.weights, lambda ids: self.algorithm.centre(self.state, ids),
            self.engine.world.label_counts,
        )  # fmt: skip


def seconds(loop: PlainLoop | OurLoop) -> float:
    """Wall time of one round."""
    began = time.perf_counter()
    loop.round()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(config: DictConfig, rounds: int) -> dict[str, float]:
    """Median samples/s of both loops over `rounds` alternating rounds, after one of each to warm up.

    ratio: how many times as many as the plain loop, each counting its own clients' examples.
    """
    refuse_other_work(config)
    ours = OurLoop(config)
    plain = PlainLoop(config, ours.engine)
    seconds(plain), seconds(ours)
    times, speeds = [], []
    for _ in range(rounds):
        pair = [seconds(plain), seconds(ours)]
        times.append(pair[1])
        speeds.append((plain.examples / pair[0], ours.examples / pair[1]))
    memory = peak_memory()
    ours.engine.close()
    ratios = [second / first for first, second in speeds]
    return {
        "plain": statistics.median(first for first, _ in speeds),
        "ours": statistics.median(second for _, second in speeds),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "memory": memory,
        "run": statistics.median(times) * config.rounds,
    }


def peak_memory() -> float:
    """Gigabytes: the most that this process and each of its children had at a time; nan where /proc is not there."""
    total = 0.0
    for process in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        status = Path(f"/proc/{process}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        total += next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), float("nan"))
    return total / 1e9


def jobs_and_rounds(words: list[str]) -> tuple[dict[str, list[str]], int]:
    """The overrides of each case, and how many rounds are measured. Raises ConfigError."""
    cases = [word for word in words if word in CASES]
    others = [word for word in words if word not in CASES]
    measured = [word for word in others if word.startswith("rounds=")]
    if not cases and len(measured) < len(others):
        return {"composed": others}, 3
    rounds = measured[-1].partition("=")[2] if measured else "3"
    require(rounds.isdigit() and int(rounds) >= 1, "rounds", rounds, "must be a number of at least 1")
    others = [word for word in others if word not in measured]
    return {name: [*CASES[name], *others] for name in cases or CASES}, int(rounds)


def main() -> None:
    words = sys.argv[1:]
    answer_help(words, __doc__)
    with one_line_errors(words):
        bench(words)


def bench(words: list[str]) -> None:
    """Measure what the words name and print the table."""
    jobs, rounds = jobs_and_rounds(words)
    table = Table(title=f"samples a second, {rounds} alternating rounds each, torch {torch.__version__}")
    for column in ("case", "plain loop", "fedexp", "ratio (lowest to highest)", "peak memory GB", "whole run"):
        table.add_column(column)
    for name, job in jobs.items():
        config = composed(["tracking=none", *job])
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            found = fresh.submit(measure, config, rounds).result()
        table.add_row(
            name, f"{found['plain']:,.0f}", f"{found['ours']:,.0f}",
            f"{found['ratio']:.2f} ({found['lowest']:.2f} to {found['highest']:.2f})", f"{found['memory']:.1f}",
            f"{found['run'] / 60:,.1f} min ({config.rounds} rounds)",
        )  # fmt: skip
        print(f"{name}: {found['ratio']:.2f} times the plain loop", flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
