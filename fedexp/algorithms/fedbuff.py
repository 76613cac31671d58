"""FedBuff (Nguyen et al., AISTATS 2022, arXiv:2106.06639): asynchronous training with a buffer, on the virtual clock.

Many clients train at once, each from the model that was the newest when it started, and arrive when their devices are
done. An arriving update is scaled by s(tau) = (1 + tau)^-1/2, tau being how many steps the server has taken since that
client started, and goes into a buffer; after K arrivals w <- w + eta_s sum s(tau) Delta / K. A round is one step of the
server, and its cohort is the K clients whose updates fill the buffer: a client that is in it twice has trained twice.

A client that arrives is replaced by one drawn uniformly among the idle ones. Of clients that arrive at one instant the
lowest id is first, and they are replaced after the last of them. Which updates arrive in a round is known when it
begins, since durations depend on devices, examples and bytes alone; so local training is carried out in the round in
which its update arrives, with that round's learning rate. Running statistics take the plain mean of the arriving
values, not of their changes.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Annotated, Any

import pandas as pd
import torch
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import AtLeast, OneOf
from fedexp.engine import Context, State
from fedexp.errors import require
from fedexp.randomness import generator
from fedexp.selection.uniform import Uniform
from fedexp.system.devices import Devices
from fedexp.system.none import Ideal
from fedexp.tree import Params, Tree

Flight = tuple[float, int, int]  # when it arrives, which client, and the round whose model it started from


@dataclass(frozen=True, kw_only=True)
class FedBuff(FedAvg):
    """concurrency: clients that train at once; None: 10 K, or N where that is less. staleness_power: a of s(tau) =
    (1 + tau)^-a; 0: all updates count alike. divided_by: the number of uploads, or the sum of their s(tau). K is
    clients_per_round; selection.merge weighs updates as well.

    State also has "arriving", the trainings that arrive in the coming round, in order, and "training", those that
    arrive later; of each: "due" float64 [n], the clock's seconds at its arrival, "client" int64 [n], and "version"
    int64 [n], the round (from 0) whose model it started from. "versions": these models; "started": int64 [N], how often
    each client has started; "bytes": what crosses for each training; "staleness": the last round's mean tau.
    """

    concurrency: Annotated[int | None, AtLeast(1)] = None
    staleness_power: Annotated[float, AtLeast(0)] = 0.5
    divided_by: Annotated[str, OneOf("uploads", "scales")] = "uploads"
    selection: Uniform = Uniform(merge="equal")
    system: Ideal = Devices()

    trains_anew = True
    needs_all = "the buffer waits for its upload"
    needs_work = "that determines when its upload arrives"

    def at_once(self, ctx: Context) -> int:
        """How many clients train at once."""
        return min(10 * ctx.cohort, ctx.clients) if self.concurrency is None else self.concurrency

    def check(self, ctx: Context) -> None:
        require(
            type(self.selection) is Uniform, "selection", type(self.selection).__name__,
            "draws among all clients, and FedBuff among those that are idle; use selection=uniform",
        )  # fmt: skip
        super().check(ctx)
        require(
            self.at_once(ctx) <= ctx.clients, "algorithm.concurrency", self.concurrency,
            f"must be at most clients={ctx.clients}: a client trains once at a time",
        )  # fmt: skip
        require(
            self.system.clock, "system", type(self.system).__name__,
            "has no simulated clock, which FedBuff needs; use system=devices",
        )  # fmt: skip
        require(
            not self.compression.init(ctx.model.params()), "compression", type(self.compression).__name__,
            "remembers an error, and a client with two updates in a buffer would encode the second without the error "
            "of the first; use compression.error_feedback=false",
        )  # fmt: skip

    def enter(self, state: State, ctx: Context) -> State:
        crossing = self.shared(state["params"], ctx)
        trained = ctx.model.trained(crossing)
        key = torch.zeros((), dtype=torch.int64, device=ctx.world.device)
        saved = tree.size_in_bytes(trained) - tree.size_in_bytes(self.compression.encode(trained, {}, key)[0])
        down = tree.size_in_bytes(crossing)
        first = {
            **state, "training": _stacked([]), "versions": {}, "started": torch.zeros(ctx.clients, dtype=torch.int64),
            "bytes": {"down": down, "up": down - saved}, "staleness": torch.zeros((), dtype=torch.float64),
        }  # fmt: skip
        return self._fly_on(first, state["round"], state["clock"], ctx)

    def select(self, state: State, ctx: Context, gen: Generator) -> Tensor:
        return state["arriving"]["client"]

    def download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        """What the cohort received when it started."""
        versions = state["arriving"]["version"].tolist()
        return {"model": tree.stack([state["versions"][str(version)] for version in versions])}

    def personal_download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        return super().download(state, ids, ctx)

    def answers(
        self, state: State, ids: Tensor, examples: list[int], failed: int, down: float, up: float, ctx: Context
    ) -> tuple[Tensor, float]:
        last = float(state["arriving"]["due"][-1])
        return torch.ones(len(ids), dtype=torch.bool), last - state["clock"]

    def combine(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Params:
        scales = (1 + self.staleness(state)) ** -self.staleness_power
        if self.divided_by == "scales":
            counted = self.selection.weights(ids, ctx).double()
            scales = scales * counted.sum() / (counted * scales).sum()
        starts, now = self.starts(state, ids, uploads, ctx), state["params"]
        update = {
            name: tree.rows(scales, change) * change
            if name in ctx.weights
            else tree.change(starts[name] + change, now[name])
            for name, change in uploads["update"].items()
        }
        return super().combine(state, ids, {**uploads, "update": update}, ctx)

    def staleness(self, state: State) -> Tensor:
        """tau of the updates that arrive in the coming round: float64 [K]."""
        return (state["round"] - state["arriving"]["version"]).double()

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        after = {**super().aggregate(state, ids, uploads, ctx, gen), "staleness": self.staleness(state).mean()}
        return self._fly_on(after, state["round"] + 1, float(state["arriving"]["due"][-1]), ctx)

    def _fly_on(self, state: State, number: int, now: float, ctx: Context) -> State:
        """The State with the trainings that arrive in round `number`, which begins at `now`, and those that go on."""
        gen, started = generator(ctx.seed, "round", number), state["started"].clone()
        arriving: list[Flight] = []
        flying: list[Flight] = [*zip(*(state["training"][name].tolist() for name in ("due", "client", "version")))]
        heapify(flying)
        while len(arriving) < ctx.cohort:
            if not flying or flying[0][0] > now:  # all of this instant have arrived
                idle = torch.ones(ctx.clients, dtype=torch.bool)
                idle[[client for _, client, _ in flying]] = False
                among, free = idle.nonzero().squeeze(1), self.at_once(ctx) - len(flying)
                for client in among[torch.randperm(len(among), generator=gen)[:free]].tolist():
                    heappush(flying, (now + self._seconds(state, client, int(started[client]), ctx), client, number))
                    started[client] += 1
                now = flying[0][0]
            arriving.append(heappop(flying))
        versions = {**state["versions"], str(number): self.shared(state["params"], ctx)}
        needed = {str(version) for _, _, version in (*flying, *arriving)}
        return {
            **state, "training": _stacked(sorted(flying)), "arriving": _stacked(arriving), "started": started,
            "versions": {version: model for version, model in versions.items() if version in needed},
        }  # fmt: skip

    def _seconds(self, state: State, client: int, before: int, ctx: Context) -> float:
        """How many simulated seconds a client takes that has started `before` times before."""
        examples, crossing = ctx.local.examples(int(ctx.sizes[client])), state["bytes"]
        return self.system.seconds(client, examples, crossing["down"], crossing["up"], ctx, before)

    def metrics(self, state: State, ctx: Context) -> dict[str, float]:
        return {"staleness": float(state["staleness"])}

    def artifacts(self, state: State, ctx: Context) -> dict[str, Any]:
        """How often each client has started to train."""
        table = pd.DataFrame({"started": state["started"].numpy()}).rename_axis("client")
        return {**super().artifacts(state, ctx), "participations": table}


def _stacked(flights: list[Flight]) -> Tree:
    """A list of flights as one tensor [n] per component."""
    return {
        "due": torch.tensor([due for due, _, _ in flights], dtype=torch.float64),
        "client": torch.tensor([client for _, client, _ in flights], dtype=torch.int64),
        "version": torch.tensor([version for _, _, version in flights], dtype=torch.int64),
    }
