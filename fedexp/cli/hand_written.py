"""FedAvg written by hand, twice, as a yardstick for the engine: a plain loop, and a floor."""

import copy
import multiprocessing
from collections.abc import Iterator
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from fedexp.algorithms.fedavg import FedAvg
from fedexp.building import construct
from fedexp.config.constructors import PARTS, of_fedexp
from fedexp.engine import Context
from fedexp.engine.schedule import batches
from fedexp.engine.worker import keep_freed_memory

Weights = dict[str, Tensor]


def does_the_same(config: DictConfig) -> bool:
    """Whether these loops can do a run: plain FedAvg without augmentation and noise."""
    parts = all(construct(config[part]) == getattr(FedAvg(), part) for part in PARTS)
    augmented = any(OmegaConf.select(config, f"dataset.transform.{name}") for name in ("crop", "flip", "rotate"))
    plain = not augmented and not of_fedexp(config, "partition", "noise")
    return parts and plain and config.algorithm["_target_"] == "fedexp.algorithms.fedavg.FedAvg"


class PlainLoop:
    """FedAvg as one would write it: ordinary layers, ReLU before pooling, one client after another, all cores through
    PyTorch's own threads. The data are normalised tensors in memory (no DataLoader). `examples`: number of examples
    that the last round trained on."""

    layout = torch.contiguous_format  # of a batch in memory

    def __init__(self, config: DictConfig, ctx: Context) -> None:
        world = ctx.world
        self.config, self.local, self.precision = config, ctx.local, ctx.hardware.precision
        self.net = self.build(world.shape, world.classes).to(world.device, world.dtype).train()
        self.rounds = self.examples = 0
        self.weights = copy.deepcopy(self.net.state_dict())
        rows = torch.arange(len(world.y), device=world.device)
        self.x = torch.cat([world.prepare(some).contiguous() for some in rows.split(5000)])
        self.y, self.clients = world.y, [world.of(client) for client in range(world.clients)]

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        net = construct(self.config.model, shape=shape, classes=classes)
        for layers in [module for module in net.modules() if isinstance(module, nn.Sequential)]:
            for first in range(len(layers) - 1):
                if isinstance(layers[first], nn.MaxPool2d) and isinstance(layers[first + 1], nn.ReLU):
                    layers[first], layers[first + 1] = layers[first + 1], layers[first]
        return net

    def round(self) -> None:
        cohort = torch.randperm(len(self.clients))[: self.config.clients_per_round].tolist()
        sizes = [len(self.clients[client]) for client in cohort]
        self.examples = sum(self.local.examples(size) for size in sizes)
        merged = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        for size, trained in zip(sizes, self.trained(cohort)):
            for name, value in trained.items():
                merged[name] += (size / sum(sizes) * value).to(value.dtype)
        for name, value in merged.items():
            self.weights[name].copy_(value)  # in place: the floor's are in shared memory
        self.rounds += 1

    def trained(self, cohort: list[int]) -> Iterator[Weights]:
        """Each client's weights after training from the global ones."""
        for client in cohort:
            self.net.load_state_dict(self.weights)
            self.train(client)
            yield self.net.state_dict()

    def train(self, client: int, **fused: Any) -> None:
        x, y, local = self.x[self.clients[client]], self.y[self.clients[client]], self.local
        lr, decay, weights = local.rate(self.rounds), local.weight_decay, list(self.net.parameters())
        if local.optimizer == "adam":
            optimizer: torch.optim.Optimizer = torch.optim.Adam(weights, lr=lr, weight_decay=decay, **fused)
        else:
            optimizer = torch.optim.SGD(weights, lr=lr, weight_decay=decay, momentum=local.momentum, **fused)
        for batch in batches(self.config.seed, self.rounds, client, len(y), local):
            optimizer.zero_grad()
            lower = self.precision == "bfloat16"
            with torch.autocast(x.device.type, torch.bfloat16) if lower else nullcontext():
                loss = F.cross_entropy(self.net(x[batch].contiguous(memory_format=self.layout)), y[batch])
            loss.backward()
            if local.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(weights, local.max_grad_norm)
            optimizer.step()

    def close(self) -> None:
        """There is nothing to end."""


class Floor(PlainLoop):
    """What is known to be fast on a CPU, without changing a layer's algorithm: one process per core with one thread,
    weights in shared memory, freed memory kept, channels last, pooling before ReLU, fused steps."""

    def __init__(self, config: DictConfig, ctx: Context) -> None:
        super().__init__(config, ctx)
        if self.x.dim() == 4:
            self.layout = torch.channels_last
            self.net = self.net.to(memory_format=self.layout)
        for value in self.weights.values():
            value.share_memory_()
        self.results = [{name: value.clone().share_memory_() for name, value in self.weights.items()}
                        for _ in range(config.clients_per_round)]  # fmt: skip
        fork = multiprocessing.get_context("fork")
        self.turn, self.pipes, self.workers = fork.Value("q", 0), [], []
        for _ in range(ctx.hardware.worker_count):
            ours, theirs = fork.Pipe()
            self.pipes.append(ours)
            self.workers.append(fork.Process(target=self._work, args=(theirs,), daemon=True))
            self.workers[-1].start()

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return construct(self.config.model, shape=shape, classes=classes)

    def trained(self, cohort: list[int]) -> Iterator[Weights]:
        order = sorted(range(len(cohort)), key=lambda row: -len(self.clients[cohort[row]]))
        self.turn.value = 0
        for pipe in self.pipes:
            pipe.send((self.rounds, cohort, order))
        for pipe in self.pipes:
            pipe.recv()
        yield from self.results[: len(cohort)]

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.join()

    def _work(self, pipe: Connection) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        while True:
            self.rounds, cohort, order = pipe.recv()
            while True:
                with self.turn.get_lock():
                    turn = self.turn.value
                    self.turn.value += 1
                if turn >= len(order):
                    break
                self.net.load_state_dict(self.weights)
                self.train(cohort[order[turn]], fused=True)
                with torch.no_grad():
                    for name, value in self.net.state_dict().items():
                        self.results[order[turn]][name].copy_(value)
            pipe.send(None)
