"""This machine's speed against a plain hand-written PyTorch loop that does the same work.

    python -m fedexp.bench                  # cases A to E
    python -m fedexp.bench A D rounds=5     # some of them, with so many measured rounds of each loop
    python -m fedexp.bench paper=fedcat dataset=mnist   # any composed run, and how long it will take

Both loops alternate in one process, round by round, on the same data, model and settings; whole rounds are
timed: selection, copying, training, merging and, for fedexp, the measures. The plain loop holds its data as
normalised tensors (no DataLoader) and uses all cores through PyTorch's own threads.
"""

import copy
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedexp.build import build_algorithm, build_dataset, build_model, build_world, construct
from fedexp.engine import Engine
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


class PlainLoop:
    """FedAvg by hand: one client after another, all cores through PyTorch's threads."""

    def __init__(self, config: DictConfig, engine: Engine) -> None:
        world = engine.world
        self.config, self.device = config, world.device
        self.net = plain_net(config, world.shape, world.classes).to(world.device).train()
        self.weights = copy.deepcopy(self.net.state_dict())
        self.x = torch.cat([world.prepare(rows) for rows in torch.arange(len(world.y)).split(5000)])
        self.y, self.clients = world.y, [world.of(client) for client in range(world.clients)]

    def round(self) -> None:
        cohort = torch.randperm(len(self.clients))[: self.config.clients_per_round].tolist()
        total = sum(len(self.clients[client]) for client in cohort)
        merged = {name: torch.zeros_like(value, dtype=torch.float) for name, value in self.weights.items()}
        for client in cohort:
            self.net.load_state_dict(self.weights)
            self._train(self.x[self.clients[client]], self.y[self.clients[client]])
            share = len(self.clients[client]) / total
            for name, value in self.net.state_dict().items():
                merged[name] += share * value
        self.weights = {name: value.to(self.weights[name].dtype) for name, value in merged.items()}

    def _train(self, x: Tensor, y: Tensor) -> None:
        local = self.config.local
        optimizer = torch.optim.SGD(
            self.net.parameters(), lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay
        )
        for _ in range(local.epochs):
            for batch in torch.randperm(len(y)).split(local.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(self.net(x[batch]), y[batch]).backward()
                optimizer.step()


class OurLoop:
    """The composed run's own rounds, measures included, evaluation on the test set not."""

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
    """Median samples/s of both loops over `rounds` alternating rounds, after one of each to warm up."""
    ours = OurLoop(config)
    plain = PlainLoop(config, ours.engine)
    seconds(plain), seconds(ours)
    pairs = [(seconds(plain), seconds(ours)) for _ in range(rounds)]
    ours.engine.close()
    usage = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "plain": ours.examples / statistics.median(first for first, _ in pairs),
        "ours": ours.examples / statistics.median(second for _, second in pairs),
        "ratio": statistics.median(first / second for first, second in pairs),
        "lowest": min(first / second for first, second in pairs),
        "highest": max(first / second for first, second in pairs),
        "memory": (usage[0] + usage[1]) / 1e6,
        "run": statistics.median(second for _, second in pairs) * config.rounds,
    }


def main() -> None:
    words = sys.argv[1:]
    answer_help(words, __doc__)
    cases = [word for word in words if word in CASES]
    rounds = next((int(word.split("=")[1]) for word in words if word.startswith("rounds=") and cases), 3)
    overrides = [word for word in words if word not in CASES]
    if cases or not overrides:
        jobs = {name: [*CASES[name], *(w for w in overrides if not w.startswith("rounds="))] for name in cases or CASES}
    else:
        jobs = {"composed": overrides}
    table = Table(title=f"samples a second, {rounds} alternating rounds each, torch {torch.__version__}")
    for column in ("case", "plain loop", "fedexp", "ratio (lowest to highest)", "peak memory GB", "whole run"):
        table.add_column(column)
    with one_line_errors(words):
        for name, job in jobs.items():
            config = composed(["tracking=none", *job])
            found = measure(config, rounds)
            table.add_row(
                name, f"{found['plain']:,.0f}", f"{found['ours']:,.0f}",
                f"{found['ratio']:.2f} ({found['lowest']:.2f} to {found['highest']:.2f})", f"{found['memory']:.1f}",
                f"{found['run'] / 60:,.1f} min ({config.rounds} rounds)",
            )  # fmt: skip
            print(f"{name}: {found['ratio']:.2f} times the plain loop", flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
