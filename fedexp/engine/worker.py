"""Local training in one process, a client at a time: in the server's process, or in a worker that the server drives."""

import ctypes
import mmap
import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from fedexp import tree
from fedexp.engine import returned
from fedexp.engine.contract import ClientFunctions
from fedexp.engine.local_training import LocalTraining, Task
from fedexp.errors import ConfigError, Interrupted
from fedexp.tree import Tree

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # workers ignore them: the server ends its workers


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Within this context PyTorch computes on `count` threads of the CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_one_by_one(
    training: LocalTraining, algorithm: ClientFunctions, number: int, tasks: list[Task], received: Tree, threads: int
) -> Tree:
    """Train all clients in this process, one after another, each on so many threads of the CPU."""
    keep_freed_memory()
    with on_threads(threads):
        done = [training.train(algorithm, number, task, tree.take(received, row)) for row, task in enumerate(tasks)]
    returned.alike("upload or remember", done)
    return tree.stack(done)


class Exchange:
    """Shared memory in which a server and its workers exchange the inputs and results of up to `capacity` clients."""

    def __init__(self, received: Tree, trained: Tree, capacity: int) -> None:
        """received: what all clients receive, leaves [K, ...]; trained: one client's results; for their form alone."""
        self.capacity, self.layout = capacity, _layout(received)
        self.inbox = tree.apply(lambda leaf: _shared(leaf[0], capacity, tree.is_spread(leaf)), received)
        self.outbox = tree.apply(lambda leaf: _shared(leaf, capacity), trained)

    def fits(self, count: int, received: Tree) -> bool:
        """Whether it can carry what `count` clients receive."""
        return count <= self.capacity and _layout(received) == self.layout

    def put(self, received: Tree, count: int) -> None:
        """For the server: write what `count` clients receive."""

        def write(leaf: Tensor, box: Tensor) -> Tensor:
            rows = 1 if tree.is_spread(leaf) else count
            return box[:rows].copy_(leaf[:rows])

        tree.apply(write, received, self.inbox)

    def received(self, row: int) -> Tree:
        """For a worker: read what one client receives."""
        return tree.take(self.inbox, row)

    def leave(self, row: int, trained: Tree) -> None:
        """For a worker: write one client's results. Raises ConfigError where they have another form than those of the
        first client of the cohort, for which there is room."""
        returned.alike("upload or remember", [tree.apply(lambda box: box[row], self.outbox), trained])
        tree.apply(lambda leaf, box: box[row].copy_(leaf), trained, self.outbox)

    def found(self, count: int) -> Tree:
        """For the server: read the results of `count` clients, leaves [count, ...]."""
        return tree.apply(lambda box: box[:count].clone(), self.outbox)


def serve(
    pipe: Connection, training: LocalTraining, algorithm: ClientFunctions, exchange: Exchange, server: int
) -> None:
    """A worker's life: train each client that is asked for as (round, row, task), and answer with None or with what
    went wrong, until the pipe closes or the server, whose process has this number, is gone."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    torch.set_num_threads(1)
    keep_freed_memory()
    training = replace(training, stopped=lambda: os.getppid() != server)  # a server that was killed cannot say so
    with suppress(EOFError, OSError):  # of the pipe: the server has gone, or has given up on this round
        while True:
            number, row, task = pipe.recv()
            failure: ConfigError | str | None = None
            try:
                exchange.leave(row, training.train(algorithm, number, task, exchange.received(row)))
            except Interrupted:
                return
            except ConfigError as error:
                failure = error
            except Exception:
                failure = traceback.format_exc()
            pipe.send(failure)


def _layout(received: Tree) -> list[tuple[tuple[str, ...], torch.Size, torch.dtype, bool]]:
    """Of each leaf [K, ...]: its path, the shape of a row, the dtype, and whether all its rows are one in memory."""
    return [(path, leaf.shape[1:], leaf.dtype, tree.is_spread(leaf)) for path, leaf in tree.leaves(received)]


def _shared(row: Tensor, count: int, one: bool = False) -> Tensor:
    """A tensor [count, ...] for rows like `row`, in memory that forked workers share. one: all its rows are the same
    row in memory."""
    rows = torch.Size((1 if one else count, *row.shape))
    memory = mmap.mmap(-1, max(1, rows.numel()) * row.dtype.itemsize)
    return torch.frombuffer(memory, dtype=row.dtype)[: rows.numel()].view(rows).expand(count, *row.shape)


def keep_freed_memory() -> None:
    """Let glibc keep freed memory: returning activations to the system costs a page fault per page in every step."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library; only speed is at stake
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 1 << 30)
    mallopt(m_top_pad, 64 << 20)
