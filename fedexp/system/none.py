"""Devices that never fail, and the interface of all systems."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedexp.config.bounds import check_fields
from fedexp.config.frozen import Frozen
from fedexp.engine import Context


@dataclass(frozen=True)
class Ideal(Frozen):
    """Every client does all of the work that `local` asks for and answers; no time is simulated.

    All random draws are keyed by (seed, purpose, round, client), so that all algorithms meet the same devices.
    """

    clock = False  # True if time is simulated

    def __post_init__(self) -> None:
        check_fields(self, "system")

    @property
    def reliable(self) -> bool:
        """Whether every client that is drawn answers."""
        return True

    @property
    def whole(self) -> bool:
        """Whether every client that is drawn does all of the work that `local` asks for."""
        return True

    @property
    def independent(self) -> bool:
        """Whether a client's work, and whether its answer counts, depend on no other client of the cohort."""
        return True

    def check(self, ctx: Context) -> None:
        """Raise ConfigError for settings that cannot work with this local training."""

    def work(self, ids: Tensor, ctx: Context, number: int) -> Tensor | None:
        """How many epochs, or steps where local.steps is set, each of clients `ids` trains: int64 [K], on the CPU; 0
        for a client that fails after its download. None: all do all of the work. number: the round, from 0."""
        return None

    def seconds(self, client: int, examples: int, down: float, up: float, ctx: Context, number: int) -> float:
        """A client's duration of round `number`, given the number of examples trained on and the bytes down and up."""
        return 0.0

    def answers(
        self, ids: Tensor, examples: list[int], failed: int, down: float, up: float, ctx: Context, number: int
    ) -> tuple[Tensor, float]:
        """Which of clients `ids`, which have trained, answer in time: bool [K]; and how many seconds the round takes.

        examples: how many each client trained on; failed: how many other clients failed; down, up: bytes per client.
        """
        return torch.ones(len(ids), dtype=torch.bool), 0.0
