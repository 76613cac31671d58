"""A cell of a published table: its runs, its measured values, and the printed value.

A measured value is a percentage for accuracies, a number of rounds, or a number in information.csv.
"""

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fedexp.config.fingerprint import DRAWS
from fedexp.config.schema import flat
from fedexp.report import published
from fedexp.report.matching import NOT_RUN, Matcher, Variant
from fedexp.report.page import NOTHING
from fedexp.report.published import Published
from fedexp.report.runs import Recorded
from fedexp.sweep.jobs import Job
from fedexp.sweep.table import Cell, Measure, Table


@dataclass(frozen=True)
class Measured:
    """A cell with all that is known about it. values: one per run, in the table's unit."""

    cell: Cell
    printed: Published
    rounds_of_protocol: int | None  # None if it was not run, or the paper's own protocol cannot be composed
    variant: Variant  # of no runs if there is no value
    values: list[float]
    others: list[Variant]
    lacking: str  # why there is no value, or not one from every seed (or other repetition)

    @property
    def place(self) -> tuple[str, str]:
        return self.cell.row, self.cell.column

    @property
    def mean(self) -> float:
        return fmean(self.values) if self.values else math.nan

    @property
    def std(self) -> float:
        return stdev(self.values) if len(self.values) > 1 and math.isfinite(self.mean) else math.nan

    @property
    def difference(self) -> float:
        both = math.isfinite(self.mean) and self.printed.value is not None
        return self.mean - self.printed.value if both else math.nan

    @property
    def has_curves(self) -> bool:
        """Whether it was measured, by runs that all have a curve."""
        return bool(self.values) and all(run.curve for run in self.variant.runs)


def measure(
    table: Table, cell: Cell, jobs: dict[tuple[str, str, bool], list[Job]], peers: list[Job], matcher: Matcher,
    protocol: tuple[Any, ...] | None = None,
) -> Measured:  # fmt: skip
    """All that is known about a cell. jobs: those of the cells that may have runs, by row, column, and whether they are
    the cell's reference; peers: one job of each of these cells; protocol: that of the runs to show, if not the nearest
    to the paper's."""
    printed = published.find(table.name, cell)
    own = jobs.get((cell.row, cell.column, False))
    if own is None:
        return Measured(cell, printed, None, NOT_RUN, [], [], "not run")
    if own[0].error is not None:
        return Measured(cell, printed, None, NOT_RUN, [], [], own[0].error.right)
    variants, incomplete = matcher.find(own, peers)
    lacking = "; ".join(f"seed {run.seed} {run.why}" for run in incomplete)
    if not variants:
        return Measured(cell, printed, None, NOT_RUN, [], [], lacking or "not run")
    if protocol is not None:
        variants.sort(key=lambda variant: repr(variant.protocol) != repr(protocol))
    variant, *others = variants
    values = [_value(cell.measure, run) for run in variant.runs]
    if cell.measure.kind == "reduction":
        references, _ = matcher.find(jobs[cell.row, cell.column, True], peers)
        same = [each for each in references if repr(each.deviation) == repr(variant.deviation)]
        if not same:
            return Measured(cell, printed, None, NOT_RUN, [], variants, "its reference ran under another protocol")
        level = fmean(_value(cell.measure, run) for run in same[0].runs)
        values = [level - value for value in values]
    if any(map(math.isnan, values)):
        file = "information.csv" if cell.measure.kind == "information" else "metrics.csv"
        return Measured(cell, printed, None, NOT_RUN, [], [], f"{file} cannot be read or lacks this number")
    asked = len({repr([flat(job.plain).get(key) for key in DRAWS]) for job in own})  # other keys may be swept, too
    if len(variant.runs) < asked:
        lacking = "; ".join([f"{len(variant.runs)} of {asked} {table.repetitions}", *filter(None, [lacking])])
    rounds = None if own[0].protocol is None else own[0].protocol["rounds"]
    return Measured(cell, printed, rounds, variant, values, others, lacking)


def _value(measure: Measure, run: Recorded) -> float:
    """The number for the table; infinity for a target that was not reached; NaN if the run has no such value. For a
    reduction this is the final accuracy."""
    if measure.kind == "information":
        lines = run.information
        for column, wanted in measure.where.items():
            lines = lines[lines[column].astype(str) == wanted]
        return float(lines[measure.argument].iloc[0]) if len(lines) == 1 else math.nan
    metrics = run.metrics
    if metrics.empty:
        return math.nan
    accuracy = metrics.test_accuracy
    if measure.kind == "rounds_to":
        reached = metrics["round"][accuracy >= measure.argument]
        return math.inf if reached.empty else float(reached.iloc[0])
    if measure.kind == "best":
        within = accuracy if measure.argument is None else accuracy[metrics["round"] <= measure.argument]
        return 100 * float(within.max())
    if measure.kind == "last":
        return 100 * float(accuracy.tail(measure.argument).mean())
    return 100 * float(accuracy.iloc[-1])


def digits(cell: Cell) -> int:
    """The number of decimals with which a cell's values are shown."""
    return 2 if cell.measure.is_accuracy else 0 if cell.measure.kind == "rounds_to" else 4


def number(value: float, cell: Cell) -> str:
    """A value as its cell shows it."""
    if math.isinf(value):
        return "not reached"
    return NOTHING if math.isnan(value) else f"{value:.{digits(cell)}f}"
