"""Unequal and unreliable devices on a virtual clock.

A client's round takes M_down / b + (number of examples trained on) c + M_up / (r b) seconds, with the client's own
seconds per example c and bandwidth b, drawn once for all rounds from log-normal distributions around the medians, like
the devices of FedScale (Lai et al., ICML 2022) but without its traces. M_down and M_up are the bytes that really cross,
compressed or not. A round lasts until the slowest answer, or until the deadline if any client misses it. Surveys and
the server's computations take no time.

Over-commitment, as in FedScale: the server draws more clients than it needs, such as 13 instead of 10, and ends the
round as soon as `wait_for` of them, 10, have answered. The others have received the model for nothing. So fast clients
count more often than slow ones.

Stragglers are those of FedProx (Li et al., MLSys 2020): of the K clients of a round, round(K (1 - share)) do all their
epochs; every other client does a random number of them, from 1 to all but one. A pass with its own
number of epochs, such as FedRep's for the head, is not shortened.
"""

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedexp.config.bounds import Above, AtLeast, OneOf, Within
from fedexp.engine import Context
from fedexp.errors import require
from fedexp.randomness import generator
from fedexp.system.none import Ideal


class Device(NamedTuple):
    """Seconds per example of local training, and bytes per second from (down) and to (up) the server."""

    seconds_per_example: float
    down: float
    up: float

    def seconds(self, examples: int, down: float, up: float) -> float:
        """The duration of a round, given the number of examples trained on and the bytes down and up."""
        return down / self.down + examples * self.seconds_per_example + up / self.up


@dataclass(frozen=True)
class Devices(Ideal):
    """dropout: probability that a client fails after its download. stragglers: share of a cohort that does less work;
    partial_work: aggregate it, or drop it like a failure (as FedProx's authors do for FedAvg). deadline: in seconds.
    wait_for: after how many answers a round ends (of those that arrive at one instant the lowest ids count); None: all.

    seconds_per_example, bandwidth (down, bytes per second): medians over clients; *_spread: standard deviations of
    their logarithms; 0: all equal. upload_ratio: bandwidth up over bandwidth down. jitter: standard deviation of the
    logarithm of computing time, drawn anew every round. If no client fails or is late, the weights are those of
    system=none.
    """

    dropout: Annotated[float, Within(0, 1)] = 0.0
    stragglers: Annotated[float, Within(0, 1)] = 0.0
    partial_work: Annotated[str, OneOf("aggregate", "drop")] = "aggregate"
    deadline: Annotated[float | None, Above(0)] = None
    wait_for: Annotated[int | None, AtLeast(1)] = None
    seconds_per_example: Annotated[float, AtLeast(0)] = 0.005
    speed_spread: Annotated[float, Within(0, 10)] = 0.6
    bandwidth: Annotated[float, AtLeast(1e-6)] = 1e6
    bandwidth_spread: Annotated[float, Within(0, 10)] = 1.0
    upload_ratio: Annotated[float, AtLeast(1e-6)] = 0.25
    jitter: Annotated[float, Within(0, 10)] = 0.0

    clock = True

    @property
    def reliable(self) -> bool:
        dropped = self.dropout > 0 or (self.stragglers > 0 and self.partial_work == "drop")
        return not dropped and self.deadline is None and self.wait_for is None

    @property
    def whole(self) -> bool:
        return self.dropout == 0 and self.stragglers == 0

    @property
    def independent(self) -> bool:
        return self.stragglers == 0 and self.wait_for is None

    def check(self, ctx: Context) -> None:
        asked = _asked(ctx)
        require(
            self.stragglers == 0 or asked >= 2, "system.stragglers", self.stragglers,
            f"do 1 or more, but not all, of local.{'steps' if ctx.local.steps else 'epochs'}={asked}; use at least 2",
        )  # fmt: skip
        require(
            self.partial_work == "aggregate" or round(ctx.cohort * (1 - self.stragglers)) > 0, "system.stragglers",
            self.stragglers, f"with system.partial_work=drop nobody's work is left of clients_per_round={ctx.cohort}; "
            "use a smaller share, more clients_per_round, or system.partial_work=aggregate",
        )  # fmt: skip
        require(
            self.wait_for is None or self.wait_for <= ctx.cohort, "system.wait_for", self.wait_for,
            f"must be at most clients_per_round={ctx.cohort}, the number of clients that are drawn",
        )  # fmt: skip

    def work(self, ids: Tensor, ctx: Context, number: int) -> Tensor | None:
        if self.dropout == 0 and self.stragglers == 0:
            return None
        work = torch.full((len(ids),), _asked(ctx))
        order = torch.randperm(len(ids), generator=generator(ctx.seed, "stragglers", number))
        for row in order[round(len(ids) * (1 - self.stragglers)) :].tolist():
            draw = generator(ctx.seed, "work", number, int(ids[row]))
            less = int(torch.randint(1, _asked(ctx), (), generator=draw))
            work[row] = less if self.partial_work == "aggregate" else 0
        for row, client in enumerate(ids.tolist()):
            if torch.rand((), generator=generator(ctx.seed, "dropout", number, client)) < self.dropout:
                work[row] = 0
        first = {client: row for row, client in reversed([*enumerate(ids.tolist())])}
        return work[[first[client] for client in ids.tolist()]]  # a client that clusamp draws twice works once

    def seconds(self, client: int, examples: int, down: float, up: float, ctx: Context, number: int) -> float:
        return self.device(client, ctx.seed, number).seconds(examples, down, up)

    def answers(
        self, ids: Tensor, examples: list[int], failed: int, down: float, up: float, ctx: Context, number: int
    ) -> tuple[Tensor, float]:
        clients = ids.tolist()
        seconds = [self.seconds(client, count, down, up, ctx, number) for client, count in zip(clients, examples)]
        limit = math.inf if self.deadline is None else self.deadline
        by_time = sorted(range(len(clients)), key=lambda row: (seconds[row], clients[row]))
        first = [row for row in by_time if seconds[row] <= limit][: self.wait_for]
        in_time = torch.zeros(len(clients), dtype=torch.bool)
        in_time[first] = True
        enough = len(first) == self.wait_for or (failed == 0 and len(first) == len(clients))
        if self.deadline is not None and not enough:
            return in_time, self.deadline
        return in_time, max((seconds[row] for row in first), default=0.0)

    def device(self, client: int, seed: int, number: int | None = None) -> Device:
        """A client's device; in round `number` (from 0) with that round's jitter."""
        own = torch.randn(2, generator=generator(seed, "system", client), dtype=torch.float64).tolist()
        slower = self.speed_spread * own[0]
        if number is not None and self.jitter:
            slower += self.jitter * float(torch.randn((), generator=generator(seed, "jitter", number, client)))
        down = self.bandwidth * math.exp(self.bandwidth_spread * own[1])
        return Device(self.seconds_per_example * math.exp(slower), down, self.upload_ratio * down)


def _asked(ctx: Context) -> int:
    """How many epochs, or steps where local.steps is set, each client is asked to do."""
    return ctx.local.epochs if ctx.local.steps is None else ctx.local.steps
