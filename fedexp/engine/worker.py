"""Local training in one process, a client at a time: in the server's process, or in a worker that the server drives."""

import ctypes
import mmap
import os
import signal
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from fedexp import tree
from fedexp.engine.contract import ClientFunctions
from fedexp.engine.local_training import LocalTraining, Task
from fedexp.errors import Interrupted
from fedexp.tree import Tree

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # workers ignore them: the server ends its workers
Layout = list[tuple[tuple[str, ...], torch.Size, torch.dtype, bool]]  # path, shape of a row, dtype, whether shared


def train_one_by_one(
    training: LocalTraining, algorithm: ClientFunctions, number: int, tasks: list[Task], download: Tree, memory: Tree
) -> tuple[Tree, Tree, Tensor]:
    """Train all clients in this process, one after another."""
    _keep_freed_memory()
    done = [
        training.train(algorithm, number, task, tree.take(download, row), tree.take(memory, row))
        for row, task in enumerate(tasks)
    ]
    uploads, kept, losses = zip(*done)
    return tree.stack(list(uploads)), tree.stack(list(kept)), torch.stack(losses)


class Exchange:
    """Shared memory in which a server and its workers exchange the inputs and results of up to `capacity` clients."""

    def __init__(self, received: Tree, trained: tuple[Tree, Tree, Tensor], capacity: int) -> None:
        """received: what all clients receive, leaves [K, ...]; trained: one client's results; for their form alone."""
        self.capacity = capacity
        self.sent, self.layout = tree.form(received), _layout(received)
        self.inbox = _shared(self.layout, capacity)
        left = _left(trained)
        self.left = tree.form(left)
        self.outbox = _shared([(path, leaf.shape, leaf.dtype, False) for path, leaf in tree.leaves(left)], capacity)

    def fits(self, count: int, received: Tree) -> bool:
        return count <= self.capacity and _layout(received) == self.layout

    def put(self, received: Tree, count: int) -> None:
        """For the server: write what `count` clients receive."""
        for (path, *_, shared), (_, leaf) in zip(self.layout, tree.leaves(received)):
            self.inbox[path][: 1 if shared else count].copy_(leaf[:1] if shared else leaf)

    def received(self, row: int) -> Tree:
        """For a worker: read what one client receives."""
        rows = {path: self.inbox[path][0 if shared else row] for path, *_, shared in self.layout}
        return tree.grow(self.sent, rows)

    def leave(self, row: int, trained: tuple[Tree, Tree, Tensor]) -> None:
        """For a worker: write one client's results."""
        for path, leaf in tree.leaves(_left(trained)):
            self.outbox[path][row].copy_(leaf)

    def found(self, count: int) -> tuple[Tree, Tree, Tensor]:
        """For the server: read the results of `count` clients, leaves [count, ...]."""
        found = tree.grow(self.left, {path: box[:count].clone() for path, box in self.outbox.items()})
        return found["upload"], found["memory"], found["loss"]


def serve(pipe: Connection, training: LocalTraining, algorithm: ClientFunctions, exchange: Exchange) -> None:
    """A worker's life: train each client that is asked for as (round, row, task), and answer with None or with what
    went wrong, until the pipe closes or the server is gone."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    torch.set_num_threads(1)
    _keep_freed_memory()
    parent = os.getppid()
    training = replace(training, stopped=lambda: os.getppid() != parent)  # a server that was killed cannot say so
    while True:
        try:
            number, row, task = pipe.recv()
        except (EOFError, OSError):  # the latter where the last answer was never read
            return
        failure = None
        try:
            received = exchange.received(row)
            exchange.leave(row, training.train(algorithm, number, task, received["download"], received["memory"]))
        except Interrupted:
            return
        except Exception:
            failure = traceback.format_exc()
        try:
            pipe.send(failure)
        except OSError:
            return  # the server has gone, or has given up on this round: nobody reads


def _left(trained: tuple[Tree, Tree, Tensor]) -> Tree:
    """A client's results as one tree."""
    return dict(zip(("upload", "memory", "loss"), trained))


def _layout(received: Tree) -> Layout:
    """The layout of leaves [K, ...]; a leaf is shared where all its rows are one (an expanded view)."""
    return [(path, leaf.shape[1:], leaf.dtype, tree.is_spread(leaf)) for path, leaf in tree.leaves(received)]


def _shared(layout: Layout, rows: int) -> dict[tuple[str, ...], Tensor]:
    """A tensor [rows, ...] (one row where shared) for each entry, in memory that forked workers share."""
    boxes = {}
    for path, shape, dtype, shared in layout:
        full = (1 if shared else rows, *shape)
        count = max(1, torch.Size(full).numel())
        memory = mmap.mmap(-1, count * dtype.itemsize)
        boxes[path] = torch.frombuffer(memory, dtype=dtype, count=count)[: torch.Size(full).numel()].view(full)
    return boxes


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory: returning activations to the system costs a page fault per page in every step."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library; only speed is at stake
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 1 << 30)
    mallopt(m_top_pad, 64 << 20)
