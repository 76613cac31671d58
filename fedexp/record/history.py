"""A run's measurements so far: the rows of metrics.csv, and totals over all rounds."""

import math
from dataclasses import dataclass, field
from typing import Any

from fedexp.errors import require
from fedexp.record.result import last_rounds, summary

Row = dict[str, Any]
_FIRST = (  # columns of metrics.csv before all others
    "round", "stage", "test_accuracy", "test_loss", "local_loss", "round_bytes_up", "round_bytes_down", "bytes_up",
    "bytes_down", "bytes_total", "divergence_mean", "divergence_max", "cohort_emd", "simulated_seconds", "seconds",
    "samples_per_second",
)  # fmt: skip


@dataclass
class History:
    """rows: one per evaluated round. All others are totals of all rounds. answers: clients whose work arrived.
    examples: those trained on. seconds: with evaluation, so that samples_per_second is less than training alone would
    give."""

    rows: list[Row] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    answers: int = 0
    examples: int = 0
    seconds: float = 0.0

    def count(self, bytes_up: int, bytes_down: int, answers: int, examples: int, seconds: float) -> None:
        """Add a finished round to the totals."""
        self.bytes_up += bytes_up
        self.bytes_down += bytes_down
        self.answers += answers
        self.examples += examples
        self.seconds += seconds

    def add(self, row: Row) -> Row:
        """Add an evaluated round's row, completed by totals and the mean accuracy of the last rounds; returns it."""
        own = {
            **self._totals(),
            "test_accuracy_last10": last_rounds([*self.rows, row]),
            "bytes_total": self.bytes_up + self.bytes_down,
            "samples_per_second": round(self.examples / self.seconds, 1),
        }
        taken = ", ".join(sorted(row.keys() & own.keys()))
        require(
            not taken, "", taken, "is a column of metrics.csv already; a measure or an algorithm must use another name"
        )
        row = {**row, **own}
        row = {**{name: row[name] for name in _FIRST if name in row}, **row}
        self.rows.append(row)
        return row

    def summary(self, targets: list[float]) -> dict[str, Any]:
        """The curve summarised in a few numbers, and totals."""
        return summary(self.rows, targets) | self._totals()

    def diverged(self) -> bool:
        """Whether a loss of the last evaluated round is not finite."""
        last = self.rows[-1]
        return not math.isfinite(last["test_loss"] + last.get("local_loss", 0.0))  # no local loss if no client trained

    def _totals(self) -> dict[str, Any]:
        return {"bytes_up": self.bytes_up, "bytes_down": self.bytes_down, "seconds": round(self.seconds, 3)}
