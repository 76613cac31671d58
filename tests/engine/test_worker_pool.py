"""Worker processes that cannot start, are killed, stopped, or lose their server."""

import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from worlds import gap, make_context, make_model, make_world, rounds, start

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Local, client_rows, worker_pool
from fedexp.engine.local_training import Task
from fedexp.engine.worker import on_threads
from fedexp.engine.worker_pool import WorkerPool
from fedexp.errors import ConfigError, WorkerDied
from fedexp.models import Model
from fedexp.models.mcmahan import mcmahan_cnn


@dataclass(frozen=True, kw_only=True)
class Attacked(FedAvg):
    """The worker that makes a file of this folder in the middle of a client's training sends itself a signal; there
    are `times` such files."""

    folder: Path
    times: int
    signal: int = signal.SIGKILL

    def loss(self, model, params, batch, client):
        if client.round == 1 and len(batch.y) < 8:  # an epoch's last batch
            for number in range(self.times):
                try:
                    (self.folder / str(number)).touch(exist_ok=False)
                except FileExistsError:
                    continue
                os.kill(os.getpid(), self.signal)
        return super().loss(model, params, batch, client)


def played(algorithm, sizes=(5, 41, 17, 30, 9, 20), workers=2, count=3):
    world = make_world(list(sizes), dtype=torch.float32)
    model = make_model("norm", world, torch.float32)
    before = set(multiprocessing.active_children())  # such as those that joblib keeps after another test
    ctx = make_context(model, world, cohort=len(sizes), workers=workers, precision="float32")
    try:
        return rounds(algorithm, ctx, count)[-1].after
    finally:
        ctx.engine.close()
        assert set(multiprocessing.active_children()) <= before


def said(caplog, text):
    return sum(text in record.getMessage() for record in caplog.records)


def test_neither_workers_nor_threads_change_a_bit():
    """Where one process trains a cohort that workers could train, it does so on one thread, as they do: convolutions
    of this size are added up in another order on two."""
    world = make_world([60, 90], 10, (1, 28, 28), torch.float32)
    model, states = Model(mcmahan_cnn((1, 28, 28), 10, hidden=16)), []
    for workers, threads in ((2, 2), (1, 2), (1, 1)):
        ctx = make_context(model, world, cohort=2, workers=workers, precision="float32")
        ctx.engine.hardware = replace(ctx.hardware, convolution="direct")
        with on_threads(threads):
            states.append(rounds(FedAvg(), ctx, 1)[0].after)
            ctx.engine.close()
            assert torch.get_num_threads() == threads
    assert gap(states[0], states[1]) == gap(states[0], states[2]) == 0


def test_killed_workers_are_replaced_and_their_clients_trained_again(tmp_path, caplog):
    whole = played(Attacked(folder=tmp_path, times=0))
    assert gap(whole, played(Attacked(folder=tmp_path, times=3))) == 0
    assert said(caplog, "died (SIGKILL); another one trains this client again") == 3


def test_a_worker_that_dies_while_it_waits_is_replaced(caplog):
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, cohort=4, workers=2)
    expected = rounds(FedAvg(), ctx, 2)[-1].after
    first = rounds_open(ctx, 1)
    for worker in ctx.engine.pools[0].workers.values():
        worker.kill()
        worker.join()
    assert gap(expected, rounds(FedAvg(), ctx, 1, first)[-1].after) == 0
    assert said(caplog, "died (SIGKILL)") == 2


def rounds_open(ctx, count):
    """The State after rounds whose workers still live."""
    closing, ctx.engine.close = ctx.engine.close, lambda: None
    try:
        return rounds(FedAvg(), ctx, count)[-1].after
    finally:
        ctx.engine.close = closing


def test_a_client_whose_worker_is_killed_every_time_ends_the_run(tmp_path):
    told = r"trained client \d died \(SIGKILL\), for the 4th time in a round; is there enough memory for all workers"
    with pytest.raises(WorkerDied, match=told):
        played(Attacked(folder=tmp_path, times=99))
    assert len(list(tmp_path.iterdir())) < 20


def test_a_stopped_worker_is_noticed_said_and_replaced(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(worker_pool, "STOPPED_SECONDS", 0.2)
    whole = played(Attacked(folder=tmp_path, times=0))
    assert gap(whole, played(Attacked(folder=tmp_path, times=1, signal=signal.SIGSTOP))) == 0
    assert said(caplog, "a worker has been stopped for") == 1


def test_a_worker_that_is_stopped_for_a_moment_goes_on(tmp_path, caplog):
    done = threading.Event()

    def resume():
        while not done.wait(0.6):
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGCONT)

    helper = threading.Thread(target=resume)
    helper.start()
    try:
        played(Attacked(folder=tmp_path, times=1, signal=signal.SIGSTOP))
    finally:
        done.set()
        helper.join()
    assert caplog.records == []


@pytest.fixture
def few_files():
    """This process may open only so many files more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(more):
        opened = set(map(int, os.listdir("/proc/self/fd")))
        free = (number for number in itertools.count() if number not in opened)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, more, None)), before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_workers_that_cannot_start_end_the_run_at_once_with_the_reason(few_files):
    few_files(26)
    with pytest.raises(ConfigError, match=r"hardware.workers=20: 20 worker processes cannot be .*Too many open files"):
        played(FedAvg(), sizes=[9] * 20, workers=20)


@pytest.mark.parametrize(
    ("files", "line"), [(26, r"only \d of 20 workers could be started"), (10, "no worker process")]
)
def test_of_as_many_workers_as_there_are_cores_fewer_will_do(few_files, files, line, monkeypatch, caplog):
    whole = played(FedAvg(), sizes=[9] * 20, workers=2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(20)))
    few_files(files)
    assert gap(whole, played(FedAvg(), sizes=[9] * 20, workers="auto")) < 1e-5
    assert said(caplog, line.split("\\")[0]) == 1


def test_a_daemon_which_may_start_no_process_trains_by_itself(monkeypatch, caplog):
    whole = played(FedAvg(), workers=2)
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # as in multiprocessing.Pool
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert gap(whole, played(FedAvg(), workers="auto")) < 1e-5
    assert said(caplog, "a daemon of multiprocessing, which may have no children") == 1
    with pytest.raises(ConfigError, match=r"hardware\.workers=2: 2 worker processes cannot be started here \(.*daemon"):
        played(FedAvg(), workers=2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert worker_pool.in_child(os.getpid) == os.getpid()


@pytest.fixture
def a_gpu_in_sight(monkeypatch):
    """PyTorch says that there is one."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


def test_beside_a_gpu_workers_train_as_long_as_they_can(a_gpu_in_sight, caplog):
    assert worker_pool.children_can_train()
    assert gap(played(FedAvg(), workers=2), played(FedAvg(), workers=1)) < 1e-5
    assert not caplog.records


def test_work_for_a_child_is_done_by_one_beside_a_gpu_alone(monkeypatch):
    assert worker_pool.in_child(os.getpid) == os.getpid()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert worker_pool.in_child(os.getpid) != os.getpid()


def test_work_of_a_child_that_dies_is_done_here(a_gpu_in_sight):
    here = os.getpid()
    assert worker_pool.in_child(lambda: here if os.getpid() == here else os._exit(1)) == here


def test_workers_that_could_not_train_are_not_started(a_gpu_in_sight, monkeypatch, caplog):
    """With a GPU, PyTorch lets no forked process compute gradients once this one has: as if the child found so."""
    whole = played(FedAvg(), workers=2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})  # on a single core there would be no workers
    monkeypatch.setattr(worker_pool, "_compute_a_gradient", lambda: os._exit(1))
    assert gap(whole, played(FedAvg(), workers="auto")) < 1e-5
    assert said(caplog, "CUDA_VISIBLE_DEVICES") == 1
    with pytest.raises(ConfigError, match=r"hardware\.workers=2: .*CUDA_VISIBLE_DEVICES"):
        played(FedAvg(), workers=2)


@dataclass(frozen=True, kw_only=True)
class Slow(FedAvg):
    def loss(self, model, params, batch, client):
        print("training", flush=True)
        time.sleep(0.2)
        return super().loss(model, params, batch, client)


SLOW_RUN = """
from test_worker_pool import Local, Slow, make_context, make_model, make_world, rounds

world = make_world()
rounds(Slow(), make_context(make_model("cnn", world), world, Local(steps=300), workers=2), 1)
"""

KILLED_EARLY = f"""
import os, signal, time
from fedexp.engine import worker

server = os.getpid()

def start():
    time.sleep(1)  # the server sends this worker a client to train
    os.kill(server, signal.SIGKILL)
    while os.getppid() == server:
        time.sleep(0.01)
    print("training", flush=True)

worker.keep_freed_memory = start
{SLOW_RUN}
"""


@pytest.mark.parametrize("code", [SLOW_RUN, KILLED_EARLY], ids=["in the middle of training", "while a worker starts"])
def test_workers_end_soon_after_their_server_was_killed(code):
    """The pipe that they write to closes when the last of them ends."""
    folder = Path(__file__).parent
    paths = os.pathsep.join([str(folder), str(folder.parent), *sys.path])
    server = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert server.stdout.readline().startswith("training")
    server.kill()
    server.communicate(timeout=20)


@pytest.mark.parametrize("answered", [False, True])
def test_a_worker_that_nobody_listens_to_ends_quietly(answered, capfd):
    """As when another worker has failed: what failed is reported once, without tracebacks of broken pipes."""
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, Local(steps=2), cohort=1)
    state, ids = start(Slow(), ctx), torch.tensor([0])
    received = {"download": Slow().download(state, ids, ctx), "memory": client_rows.take(state["memory"], ids)}
    pool = WorkerPool(ctx.engine.training, Slow(), [Task(0)], received, 1)
    ((pipe, worker),) = pool.workers.items()
    pipe.send((0, 0, Task(0)))
    assert not answered or pipe.poll(60)
    pipe.close()
    worker.join(timeout=60)
    assert worker.exitcode == 0
    assert "Traceback" not in capfd.readouterr().err
