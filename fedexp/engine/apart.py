"""Rows apart: a worker process a core, each training clients one after another (CPUs).

Workers are forked with the data, the model and the algorithm, and exchange weights with the server
through shared memory. Which worker trains which client changes nothing in the result.
"""

import ctypes
import mmap
import multiprocessing
import os
import signal
import traceback
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from fedexp import tree
from fedexp.engine.client import Interrupted, Rule, Workshop, one
from fedexp.engine.exchange import Sent
from fedexp.tree import Stack, Tree


def train_one_by_one(shop: Workshop, rule: Rule, round: int, ids: list[int], sent: Sent) -> tuple[Stack, Tensor]:
    """The same in this process, one client after another."""
    _keep_freed_memory()
    done = [shop.train(rule, round, client, one(sent, row)) for row, client in enumerate(ids)]
    return tree.stack([params for params, _ in done]), torch.stack([loss for _, loss in done])


class Crew:
    """Forked workers for one algorithm and one layout of what is sent (names, shapes, which are shared)."""

    def __init__(self, shop: Workshop, rule: Rule, sent: Sent, count: int) -> None:
        self.shop, self.rule = shop, rule
        self.capacity = len(next(iter(sent.start.values())))
        self.layout = _layout(sent)
        self.inbox = _shared(self.layout, self.capacity)
        results = [(("params", name), leaf.shape[1:], leaf.dtype, False) for name, leaf in sent.start.items()]
        self.outbox = _shared([*results, (("loss",), torch.Size(), torch.float32, False)], self.capacity)
        fork = multiprocessing.get_context("fork")
        self.next = fork.Value("q", 0)
        self.pipes: list[Connection] = []
        self.workers = []
        for _ in range(count):
            ours, theirs = fork.Pipe()
            self.pipes.append(ours)
            worker = fork.Process(target=self._work, args=(theirs,), daemon=True)
            worker.start()
            theirs.close()
            self.workers.append(worker)

    def fits(self, rule: Rule, sent: Sent, count: int) -> bool:
        """Whether this crew can train `count` clients from `sent` under `rule`."""
        return rule is self.rule and count <= self.capacity and _layout(sent) == self.layout

    def train(self, round: int, ids: list[int], sent: Sent) -> tuple[Stack, Tensor]:
        """Train all of `ids`; the largest first, so that no worker is left with a long one at the end."""
        for (path, *_, shared), (_, leaf) in zip(self.layout, tree.leaves(_parts(sent))):
            self.inbox[path][: 1 if shared else len(ids)].copy_(leaf[:1] if shared else leaf)
        order = sorted(range(len(ids)), key=lambda row: -int(self.shop.world.sizes[ids[row]]))
        self.next.value = 0
        for pipe in self.pipes:
            pipe.send((round, ids, order))
        waiting = dict(zip(self.pipes, self.workers))
        while waiting:
            for pipe in wait(list(waiting), timeout=0.5):
                try:
                    failure = pipe.recv()
                except EOFError:
                    raise RuntimeError("a worker process died (killed, or out of memory?)") from None
                if failure:
                    raise RuntimeError(f"local training failed in a worker:\n{failure}")
                del waiting[pipe]
            if self.shop.stopped():
                raise Interrupted
        k = len(ids)
        params = {name: self.outbox["params", name][:k].clone() for name in sent.start}
        return params, self.outbox[("loss",)][:k].clone()

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for worker in self.workers:
            worker.kill()
            worker.join()

    def _work(self, pipe: Connection) -> None:
        parent = os.getppid()
        self.shop.stopped = lambda: os.getppid() != parent  # a server that was killed cannot say so
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the server decides; its end ends the workers
        for other in self.pipes:
            other.close()
        torch.set_num_threads(1)
        _keep_freed_memory()
        while True:
            try:
                round, ids, order = pipe.recv()
            except (EOFError, OSError):  # the latter where the last answer was never read
                return
            failure = None
            try:
                while (row := self._claim(order)) is not None:
                    self._train(round, ids[row], row)
            except Interrupted:
                return
            except Exception:
                failure = traceback.format_exc()
            try:
                pipe.send(failure)
            except OSError:
                return  # the server has gone, or has given up on this round: nobody reads

    def _claim(self, order: list[int]) -> int | None:
        with self.next.get_lock():
            turn = self.next.value
            self.next.value += 1
        return order[turn] if turn < len(order) else None

    def _train(self, round: int, client: int, row: int) -> None:
        parts = tree.grow([(path, self.inbox[path][0 if shared else row]) for path, *_, shared in self.layout])
        sent = Sent(*(parts.get(name, {}) for name in ("start", "extra", "memory")))
        params, loss = self.shop.train(self.rule, round, client, sent)
        for name, value in params.items():
            self.outbox["params", name][row].copy_(value)
        self.outbox[("loss",)][row] = loss


def _parts(sent: Sent) -> Tree:
    return {"start": sent.start, "extra": sent.extra, "memory": sent.memory}


def _layout(sent: Sent) -> list[tuple[tuple[str, ...], torch.Size, torch.dtype, bool]]:
    """Path, shape of a row, dtype, and whether all rows are one (an expanded view), of every leaf."""
    return [(path, leaf.shape[1:], leaf.dtype, tree.is_spread(leaf)) for path, leaf in tree.leaves(_parts(sent))]


def _shared(layout: list[Any], rows: int) -> dict[tuple[str, ...], Tensor]:
    """A tensor [rows, ...] (one row where shared) for each entry, in memory that forked workers share."""
    boxes = {}
    for path, shape, dtype, shared in layout:
        full = (1 if shared else rows, *shape)
        count = max(1, torch.Size(full).numel())
        memory = mmap.mmap(-1, count * dtype.itemsize)
        boxes[path] = torch.frombuffer(memory, dtype=dtype, count=count)[: torch.Size(full).numel()].view(full)
    return boxes


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory: returning activations to the system costs a page fault a page a step."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library; only speed is at stake
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 1 << 30)
    mallopt(m_top_pad, 64 << 20)
