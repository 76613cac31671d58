"""The engine: trains a cohort, by whichever mechanism suits the machine, and keeps what was exchanged."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedexp import tree
from fedexp.engine.apart import Crew, train_one_by_one
from fedexp.engine.client import Workshop, one
from fedexp.engine.exchange import Exchange, Sent, State, Trained
from fedexp.engine.settings import Hardware, Local
from fedexp.engine.together import train_together
from fedexp.models.classifier import Model
from fedexp.tree import Stack, Tree
from fedexp.world import World

if TYPE_CHECKING:
    from fedexp.algorithms.fedavg import FedAvg


class Engine:
    """`train` is the whole of it. All mechanisms give the same weights up to float rounding."""

    def __init__(
        self, model: Model, world: World, local: Local, hardware: Hardware, seed: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.shop = Workshop(model, world, local, seed, hardware.precision, hardware.convolution, stopped)
        self.hardware = hardware
        self.exchanges: list[Exchange] = []
        self.siblings: list[Engine] = []
        self.crew: Crew | None = None
        self.at_once: int | None = None
        if hardware.clients_at_once != "auto":
            self.at_once = int(hardware.clients_at_once)
        # Settings of the whole process: an engine before this one may have chosen otherwise, and PyTorch's own
        # choice for convolutions on GPUs is TF32.
        torch.set_float32_matmul_precision("high" if hardware.precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = hardware.precision == "tf32"
        # Of its algorithms for a convolution's gradient some add in whatever order threads come.
        torch.backends.cudnn.deterministic = True

    @property
    def model(self) -> Model:
        return self.shop.model

    @property
    def world(self) -> World:
        return self.shop.world

    @property
    def local(self) -> Local:
        return self.shop.local

    @property
    def seed(self) -> int:
        return self.shop.seed

    def train(self, algorithm: "FedAvg", state: State, ids: Tensor, sent: Sent) -> Trained:
        """Train clients `ids` [K] from `sent`; ask the algorithm for their reply; note both for the measures.

        A pure function of (algorithm, state["round"], ids, sent): order and grouping change nothing.
        """
        clients, sizes = ids.tolist(), self.world.sizes[ids.cpu()]
        params, loss = self._run(algorithm, int(state["round"]), clients, sent)
        steps = torch.tensor([self.local.schedule(int(size))[1] for size in sizes])
        trained = Trained(params, steps, sizes, loss)
        trained = trained._replace(reply=algorithm.reply(state, ids, sent, trained))
        examples = sum(self.local.examples(size) for size in sizes.tolist())
        self.exchanges.append(Exchange(ids, sent, trained, examples, lambda: self.judge(algorithm, ids, sent)))
        return trained

    def exchange(self, ids: Tensor, down: Tree | None = None, up: Tree | None = None) -> None:
        """Note that clients `ids` received `down` or sent `up` (leaves [K, ...]) without training on it."""
        received = Sent({}, down) if down else None
        replied = Trained({}, *[torch.zeros(len(ids))] * 3, up) if up else None
        self.exchanges.append(Exchange(ids, received, replied))

    def drain(self) -> list[Exchange]:
        """What was exchanged since the last call."""
        done = list(self.exchanges)
        self.exchanges.clear()  # in place: siblings note theirs in the same list
        return done

    @torch.no_grad()
    def judge(self, algorithm: "FedAvg", ids: Tensor, sent: Sent, chunk: int = 1000) -> Tensor:
        """Accuracy [K] of what each client received, on its own training data, un-augmented."""
        world, scores = self.world, []
        for row, client in enumerate(ids.tolist()):
            own, rows = one(sent, row), world.of(client)
            answers = [algorithm.answer(self.model, own, world.prepare(part)) for part in rows.split(chunk)]
            scores.append((torch.cat(answers).argmax(1) == world.y[rows]).double().mean())
        return torch.stack(scores)

    def sibling(self, model: Model, world: World, local: Local) -> "Engine":
        """An engine for another model over other examples (a head over features) within the same round."""
        other = Engine(model, world, local, self.hardware, self.seed, self.shop.stopped)
        other.exchanges = self.exchanges
        self.siblings.append(other)
        return other

    def close(self) -> None:
        """End the worker processes, the siblings' too; a later `train` would start new ones."""
        self._dismiss()
        for sibling in self.siblings:
            sibling.close()

    def _dismiss(self) -> None:
        if self.crew is not None:
            self.crew.close()
            self.crew = None

    @property
    def mechanism(self) -> str:
        """apart or together: chosen by the device unless configured."""
        if self.hardware.engine != "auto":
            return self.hardware.engine
        return "together" if self.world.device.type == "cuda" else "apart"

    def _run(self, algorithm: "FedAvg", round: int, ids: list[int], sent: Sent) -> tuple[Stack, Tensor]:
        if self.mechanism == "together":
            return self._in_chunks(algorithm, round, ids, sent)
        workers = min(self.hardware.worker_count, len(ids))
        if workers < 2 or self.world.device.type != "cpu":
            return train_one_by_one(self.shop, algorithm, round, ids, sent)
        if self.crew is None or not self.crew.fits(algorithm, sent, len(ids)):
            self._dismiss()
            self.crew = Crew(self.shop, algorithm, sent, workers)
        try:
            return self.crew.train(round, ids, sent)
        except BaseException:
            self._dismiss()
            raise

    def _in_chunks(self, algorithm: "FedAvg", round: int, ids: list[int], sent: Sent) -> tuple[Stack, Tensor]:
        """The cohort, or as many of it at once as memory holds: halved after running out, and kept so."""
        parts: list[tuple[Stack, Tensor]] = []
        done = 0
        while done < len(ids):
            rows = slice(done, done + (self.at_once or len(ids)))
            some = Sent(*(tree.take(part, rows) for part in (sent.start, sent.extra, sent.memory)))
            try:
                parts.append(train_together(self.shop, algorithm, round, ids[rows], some))
            except torch.OutOfMemoryError:
                size = len(ids[rows])
                if size == 1:
                    raise
                self.at_once = -(-size // 2)
                torch.cuda.empty_cache()
                print(f"fedexp: out of device memory with {size} clients at once; going on with {self.at_once}")
                continue
            done += len(ids[rows])
        stacks, losses = zip(*parts)
        return tree.join(list(stacks)), torch.cat(losses)
