"""One worker process per core, each training clients one after another (for CPUs).

Workers are forked with the data, the model and the algorithm, and exchange tensors with the server
through shared memory. The result does not depend on which worker trains which client, so a client whose worker
was killed is trained again by another one.
"""

import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, cast

import torch

from fedexp import tree
from fedexp.engine.contract import ClientFunctions
from fedexp.engine.local_training import LocalTraining, Task
from fedexp.engine.worker import SIGNALS, Exchange, serve
from fedexp.errors import ConfigError, Interrupted, WorkerDied
from fedexp.tree import Tree

log = logging.getLogger(__name__)

STOPPED_SECONDS = 10.0  # a worker that has been stopped (SIGSTOP) for this long is replaced
ATTEMPTS = 4  # how often a client's training is tried, where its worker dies each time
_SPARE_FILES = 16  # workers leave the server this many files to open: it writes its own while they live


class WorkerPool:
    """Forked workers for one algorithm and one layout of the tensors exchanged (names, shapes, which rows are shared).

    fewer: if at least one worker can be started, go on with those that can. Raises OSError, with no process left
    running, if not enough can be started: too many files or processes, or no memory.
    """

    def __init__(
        self, training: LocalTraining, algorithm: ClientFunctions, tasks: list[Task], received: Tree, count: int,
        fewer: bool = False,
    ) -> None:  # fmt: skip
        if not _may_have_children():
            raise OSError("this process is a daemon of multiprocessing, which may have no children")
        if not children_can_train():
            raise OSError("it has computed gradients with a GPU in sight, which CUDA_VISIBLE_DEVICES= would hide")
        self.training, self.algorithm = training, algorithm
        form = training.train(algorithm, 0, tasks[0], tree.take(received, 0), untrained=True)
        self.exchange = Exchange(received, form, len(tasks))
        self.workers: dict[Connection, ForkProcess] = {}
        try:
            with ExitStack() as spare:
                for _ in range(_SPARE_FILES):
                    spare.enter_context(open(os.devnull))
                for _ in range(count):
                    self._start()
        except BaseException as error:
            if not (isinstance(error, OSError) and fewer and self.workers):
                self.close()
                raise
            log.warning("only %d of %d workers could be started (%s); going on", len(self.workers), count, error)

    def train(self, number: int, tasks: list[Task], received: Tree) -> Tree:
        """Carry out all tasks; the longest first, so that no worker is left with one of them at the end.

        Raises WorkerDied where a client's worker has died in each of ATTEMPTS attempts.
        """
        self.exchange.put(received, len(tasks))
        waiting = sorted(range(len(tasks)), key=lambda row: self.training.examples(self.algorithm, tasks[row]))
        busy: dict[Connection, int] = {}
        tried: Counter[int] = Counter()
        stopped: dict[Connection, float] = {}
        while waiting or busy:
            for pipe in [pipe for pipe in self.workers if pipe not in busy][: len(waiting)]:
                busy[pipe] = row = waiting.pop()
                with suppress(OSError):  # it has died: its pipe has ended, which is found below
                    pipe.send((number, row, tasks[row]))
            for pipe in cast(list[Connection], wait(list(busy), timeout=0.5)):
                try:
                    failure = pipe.recv()
                except (EOFError, OSError):
                    waiting.append(self._lost(busy, pipe, tasks, tried))
                    continue
                if isinstance(failure, ConfigError):
                    raise failure
                if failure:
                    raise RuntimeError(f"local training failed in a worker:\n{failure}")
                del busy[pipe]
            self._end_stopped(busy, stopped)
            if self.training.stopped():
                raise Interrupted
        return self.exchange.found(len(tasks))

    def close(self) -> None:
        for pipe in list(self.workers):
            self._end(pipe)

    def _start(self) -> None:
        """Start one more worker. Raises OSError where that is impossible."""
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        worker = fork.Process(target=self._work, args=(theirs, ours, os.getpid()), daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the worker ignores them
        try:
            worker.start()
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self.workers[ours] = worker

    def _work(self, pipe: Connection, ours: Connection, server: int) -> None:
        for other in (ours, *self.workers):
            other.close()
        serve(pipe, self.training, self.algorithm, self.exchange, server)

    def _end(self, pipe: Connection) -> ForkProcess:
        worker = self.workers.pop(pipe)
        pipe.close()
        worker.kill()
        worker.join()
        return worker

    def _lost(self, busy: dict[Connection, int], pipe: Connection, tasks: list[Task], tried: Counter[int]) -> int:
        """Replace a worker that has died; returns the row of the client that it was training."""
        row, worker = busy.pop(pipe), self._end(pipe)
        tried[row] += 1
        how = f"the worker that trained client {tasks[row].client} died ({_end_of(worker)})"
        if tried[row] == ATTEMPTS:
            killed = (worker.exitcode or 0) < 0  # by a signal, as the system does where memory runs out
            hint = (
                "is there enough memory for all workers?" if killed else "does its code, or a library, end the process?"
            )
            raise WorkerDied(f"{how}, for the {ATTEMPTS}th time in a round; {hint}")
        log.warning("%s; another one trains this client again", how)
        try:
            self._start()
        except OSError as error:
            if not self.workers:
                raise WorkerDied(f"{how}, and no other one can be started ({error})") from error
            log.warning("no worker could be started in its place (%s); going on with %d", error, len(self.workers))
        return row

    def _end_stopped(self, busy: dict[Connection, int], since: dict[Connection, float]) -> None:
        """Kill the workers that have been stopped for too long; `train` then replaces them. `since` is updated."""
        now = time.monotonic()
        for pipe in busy:
            if not _is_stopped(self.workers[pipe]):
                since.pop(pipe, None)
            elif now - since.setdefault(pipe, now) >= STOPPED_SECONDS:
                log.warning("a worker has been stopped for %.0f s: ending it", now - since.pop(pipe))
                self.workers[pipe].kill()


def _may_have_children() -> bool:
    """False within multiprocessing.Pool and other daemons, which may start no process."""
    return not multiprocessing.current_process().daemon


def children_can_train() -> bool:
    """Whether forked processes can compute gradients: not if this one has, where PyTorch sees a GPU."""
    if not torch.cuda.device_count():
        return True
    child = multiprocessing.get_context("fork").Process(target=_compute_a_gradient)
    child.start()
    child.join()
    return child.exitcode == 0


def in_child(work: Callable[[], Any]) -> Any:
    """What `work()` returns, which computes gradients. A forked process calls it where this process could fork no
    workers after that."""
    if not torch.cuda.device_count() or not _may_have_children() or not children_can_train():
        return work()
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=lambda: theirs.send(work()))
    child.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:  # the child has died: this process then does the work, and meets any error itself
        return work()
    finally:
        child.join()


def _compute_a_gradient() -> None:
    weight = torch.ones(1, requires_grad=True)
    try:
        torch.autograd.grad(weight.sum(), weight)
    except RuntimeError:
        os._exit(1)


def _end_of(worker: ForkProcess) -> str:
    code = worker.exitcode or 0
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _is_stopped(worker: ForkProcess) -> bool:
    if not hasattr(os, "waitid") or worker.pid is None:
        return False  # macOS has os.waitid from Python 3.13 on
    try:
        return os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False  # it has ended, and multiprocessing has already collected it
