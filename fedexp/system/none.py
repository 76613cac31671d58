"""Devices that never fail, and the contract of all systems."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedexp.config.bounds import check_fields
from fedexp.config.frozen import Frozen
from fedexp.engine import Context


@dataclass(frozen=True)
class Ideal(Frozen):
    """Every client answers, after all of the work that `local` asks for; no time is simulated.

    Whatever chance decides is keyed by (seed, purpose, round, client), so that all algorithms meet the same devices.
    """

    clock = False  # True where simulated time passes

    def __post_init__(self) -> None:
        check_fields(self, "system")

    @property
    def reliable(self) -> bool:
        """Whether every client that is drawn answers, and does all of the work."""
        return True

    def check(self, ctx: Context) -> None:
        """Raise ConfigError for settings that cannot work with this local training."""

    def work(self, ids: Tensor, ctx: Context, number: int) -> Tensor | None:
        """How many epochs, or steps where local.steps is given, each of the cohort `ids` trains: int64 [K], on the
        CPU; 0 for one that fails after it has received what crosses down. None: all do what is asked. number: the
        round, from 0."""
        return None

    def seconds(self, client: int, examples: int, down: float, up: float, ctx: Context, number: int) -> float:
        """How long a client takes in round `number`, going through so many examples, with so many bytes down and up."""
        return 0.0

    def answers(
        self, ids: Tensor, examples: list[int], failed: int, down: float, up: float, ctx: Context, number: int
    ) -> tuple[Tensor, float]:
        """Which of clients `ids`, who have trained, are in time: bool [K]; and how many seconds the round takes.

        examples: how many each went through; failed: how many others did not get so far; down, up: bytes for each.
        """
        return torch.ones(len(ids), dtype=torch.bool), 0.0
