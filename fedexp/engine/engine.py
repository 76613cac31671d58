"""The engine: trains a cohort, by whichever mechanism suits the machine, and counts what surveys exchange."""

import logging
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from fedexp import tree
from fedexp.config.settings import Hardware, Local
from fedexp.engine import convolutions, ranks
from fedexp.engine.contract import ClientFunctions, Question, Trained
from fedexp.engine.local_training import LocalTraining, Task
from fedexp.engine.steps import Recordings
from fedexp.engine.vectorized import train_vectorized
from fedexp.engine.worker import train_one_by_one
from fedexp.engine.worker_pool import WorkerPool, in_child
from fedexp.errors import Interrupted, require
from fedexp.models.classifier import Model
from fedexp.models.layers import STACKED
from fedexp.tree import Tree
from fedexp.world import World

log = logging.getLogger(__name__)


class Engine:
    """Trains and inspects clients. All mechanisms give the same weights up to float rounding."""

    def __init__(
        self, model: Model, world: World, local: Local, hardware: Hardware, seed: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        recordings = Recordings() if world.device.type == "cuda" and hardware.cuda_graphs else None
        self.training = LocalTraining(
            model, world, local, seed, hardware.precision, hardware.compile, stopped, recordings
        )  # fmt: skip
        self.world, self.hardware, self.mechanism = world, hardware, hardware.mechanism(world.device)
        require(
            not hardware.compile or self.mechanism == "vectorized", "hardware.compile", True,
            "compiling is for vectorized cohorts, not for workers; add hardware.engine=vectorized",
        )  # fmt: skip
        if hardware.compile:
            torch.compiler.reset()  # what an earlier run compiled would be tried first, at each step
        self.pools: list[WorkerPool] = []  # one per algorithm: the run's own, and those that evaluation trains with
        self.alone = self.world.device.type != "cpu"  # True where there can be no worker processes
        self.surveyed = [0, 0]  # bytes (up, down) of surveys since the last `drain`
        # Whether a stack's convolutions may have a form of their own.
        self.stacks = self.mechanism == "vectorized" and world.device.type == "cuda" and find_spec("triton") is not None
        self.at_once = None if hardware.clients_at_once == "auto" else int(hardware.clients_at_once)
        # These settings hold for the whole process until the run ends (fedexp/engine/torch_settings.py): an earlier
        # engine may have changed them, and PyTorch's default for convolutions on GPUs is TF32.
        torch.set_float32_matmul_precision("high" if hardware.precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = hardware.precision == "tf32"
        # Some of cuDNN's algorithms for a convolution's gradient add in an order that changes from call to call.
        torch.backends.cudnn.deterministic = True

    def fastest_tiles(self, cohort: int) -> dict[str, int]:
        """By path, the side of the tiles of each convolution that is faster in tiles here, for cohorts of `cohort`
        clients; on a GPU, STACKED for each convolution that is faster in that form."""
        hardware, world = self.hardware, self.world
        if hardware.convolution != "auto" or hardware.compile or hardware.precision == "float64":
            return {}
        on_cpu = self.mechanism == "workers" and hardware.precision == "float32" and world.device.type == "cpu"
        if not (self.stacks or on_cpu):
            return {}
        largest = min(self.training.local.batch_size, int(world.sizes.max()))
        like = world.prepare(world.rows[:1])  # for its dtype: tokens are integers
        batch = like.new_zeros(largest, *world.shape)
        if self.stacks:
            at_once = min(cohort, self.at_once or cohort)
            return ranks.from_first(
                lambda: convolutions.measured_in_stack(self.training.model, batch, at_once, self.training.autocast),
                world.device,
            )  # fmt: skip
        measure = partial(convolutions.measured, self.training.model, batch, self._threads(cohort))
        return ranks.from_first(lambda: in_child(measure), world.device)

    def _has_workers(self, cohort: int) -> bool:
        """Whether a cohort of `cohort` clients is trained by worker processes."""
        return not self.alone and min(self.hardware.worker_count * ranks.size(), cohort) > 1

    def _threads(self, cohort: int) -> int:
        """How many CPU threads train a client: one where there are several clients, in a worker or in this process, so
        that results do not depend on the number of workers and of processes; all for a client that trains alone."""
        return 1 if cohort > 1 else torch.get_num_threads()

    def use_tiles(self, tiles: dict[str, int]) -> None:
        """Train with these tiles from now on: those that `fastest_tiles` gave when the stage began. If that was on
        another kind of machine, its forms are not used on this one."""
        fits = self.stacks if self.mechanism == "vectorized" else not self.stacks
        self.training.tiles = {path: tile for path, tile in tiles.items() if fits and (tile == STACKED) == self.stacks}

    @torch.enable_grad()  # an evaluation, which runs without gradients, may train too
    def train(
        self, algorithm: ClientFunctions, number: int, ids: Tensor, download: Tree, memory: Tree,
        work: list[int] | None = None,
    ) -> Trained:  # fmt: skip
        """Train clients `ids` [K], given their downloads and their memory, leaves [K, ...] on the device.

        work: how many epochs each trains [K], or steps where local.steps is set; None: the full number for all.
        A pure function of its arguments: the order and grouping of clients change nothing.
        """
        clients = ids.tolist()
        again = [clients[:row].count(client) if algorithm.trains_anew else 0 for row, client in enumerate(clients)]
        tasks = [Task(*each) for each in zip(clients, work or [None] * len(clients), again)]
        examples = [self.training.examples(algorithm, task) for task in tasks]
        received = {"download": download, "memory": memory}
        if ranks.size() == 1:
            return Trained(**self._run(algorithm, number, tasks, received, len(tasks)), examples=examples)

        def some(rows: list[int]) -> Tree:
            """The results of the cohort's clients `rows`, which this process trains."""
            if self.training.stopped():
                raise Interrupted
            mine = tree.choose(received, torch.tensor(rows))
            return self._run(algorithm, number, [tasks[row] for row in rows], mine, len(tasks))

        found = ranks.trained(ranks.share(examples, ranks.size()), download, some, self.world.device)
        return Trained(**found, examples=examples)

    def inspect(
        self, algorithm: Question, ids: Tensor, download: Tree, memory: Tree, number: int | None = None
    ) -> Tree:
        """What clients `ids` [n] find out without training, leaves [n, ...]. Nothing is counted as exchanged.

        memory: the algorithm's of each; number: of the round in which they take part (from 0); None outside of one.
        """
        return self.training.inspect_all(algorithm, ids.tolist(), download, memory, number)

    def survey(self, algorithm: Question, ids: Tensor, download: Tree, memory: Tree) -> Tree:
        """The same, asked by the server: what goes down and the answers that come up, leaves [n, ...], are counted."""
        found = self.inspect(algorithm, ids, download, memory)
        self.count(up=tree.size_in_bytes(found), down=tree.size_in_bytes(download))
        return found

    def count(self, up: int = 0, down: int = 0) -> None:
        """Count bytes exchanged besides rounds' downloads and uploads; negative: bytes of these that were not sent."""
        self.surveyed[0] += up
        self.surveyed[1] += down

    def drain(self) -> tuple[int, int]:
        """Bytes (up, down) of the surveys since the last call."""
        up, down = self.surveyed
        self.surveyed = [0, 0]
        return up, down

    def close(self) -> None:
        """End the worker processes; a later `train` would start new ones."""
        while self.pools:
            self.pools.pop().close()

    def _run(self, algorithm: ClientFunctions, number: int, tasks: list[Task], received: Tree, cohort: int) -> Tree:
        """Train all or some clients of a cohort of `cohort` in this process and its workers."""
        if self.mechanism == "vectorized":
            return self._in_chunks(algorithm, number, tasks, received)
        try:
            pool = self._pool(algorithm, tasks, received) if self._has_workers(cohort) else None
            if pool is not None:
                return pool.train(number, tasks, received)
        except BaseException:
            self.close()
            raise
        return train_one_by_one(self.training, algorithm, number, tasks, received, self._threads(cohort))

    def _pool(self, algorithm: ClientFunctions, tasks: list[Task], received: Tree) -> WorkerPool | None:
        """This algorithm's pool, a new one where it has none that fits; None where no worker can be started."""
        for pool in [each for each in self.pools if each.algorithm == algorithm]:
            if pool.exchange.fits(len(tasks), received):
                return pool
            self.pools.remove(pool)
            pool.close()
        asked, workers = self.hardware.workers, min(self.hardware.worker_count, len(tasks))
        try:
            pool = WorkerPool(self.training, algorithm, tasks, received, workers, fewer=asked == "auto")
        except OSError as error:
            right = f"{workers} worker processes cannot be started here ({error}); ask for fewer, or for auto"
            require(asked == "auto", "hardware.workers", asked, right)
            log.warning("no worker process can be started (%s); training in the main process instead", error)
            self.alone = True
            return None
        self.pools.append(pool)
        return pool

    def _in_chunks(self, algorithm: ClientFunctions, number: int, tasks: list[Task], received: Tree) -> Tree:
        """Train all tasks at once, or as many as memory holds: each time it runs out, half as many from then on."""
        parts: list[Tree] = []
        done = 0
        while done < len(tasks):
            rows = slice(done, done + (self.at_once or len(tasks)))
            size = len(tasks[rows])
            try:
                some = tree.take(received, rows)
                parts.append(train_vectorized(self.training, algorithm, number, tasks[rows], some))
                done += size
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                self.at_once = -(-size // 2)
                if self.training.recordings is not None:
                    self.training.recordings.forget()
                torch.cuda.empty_cache()
                log.warning("out of device memory with %d clients at once; going on with %d", size, self.at_once)
        return tree.join(parts)
