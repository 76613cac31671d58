"""A cell of a published table: its runs, its measured values, and the printed value."""

import math
from dataclasses import dataclass
from statistics import fmean, stdev

from fedexp.report import measures, published
from fedexp.report.matching import Deviation, Matcher, Variant, protocol_rounds
from fedexp.report.page import NOTHING
from fedexp.report.published import Published
from fedexp.sweep.jobs import Job
from fedexp.sweep.table import Cell, Table


@dataclass(frozen=True)
class Measured:
    """A cell with all that is known about it. values: one per run, in the table's unit."""

    cell: Cell
    printed: Published
    rounds_of_protocol: int | None
    variant: Variant | None
    values: list[float]
    others: list[Variant]
    lacking: str  # why there is no value, or not one from every seed (or other repetition)

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
    def deviation(self) -> Deviation:
        return self.variant.deviation if self.variant else ()


def key(cell: Cell, reference: bool) -> str:
    """The key of a cell's runs among a sweep's jobs, or of its reference's runs."""
    return f"{cell.row}\n{cell.column}\n{reference}"


def measure(table: Table, cell: Cell, jobs: dict[str, list[Job]], peers: list[Job], matcher: Matcher) -> Measured:
    """All that is known about a cell. jobs: by `key`; peers: one job of every cell."""
    printed = published.find(table.name, cell)
    own = jobs[key(cell, False)]
    if own[0].config is None:
        return Measured(cell, printed, None, None, [], [], own[0].error.right)
    rounds = protocol_rounds(own[0])
    found = matcher.find(own, peers)
    lacking = "; ".join(f"seed {run.seed} {run.why}" for run in found.incomplete)
    if not found.variants:
        return Measured(cell, printed, rounds, None, [], [], lacking or "not run")
    variant, *others = found.variants
    values = [measures.value(cell.measure, run) for run in variant.runs]
    if cell.measure.kind == "reduction":
        references = matcher.find(jobs[key(cell, True)], peers).variants
        same = [each for each in references if _of_both(each.deviation) == _of_both(variant.deviation)]
        if not same:
            return Measured(cell, printed, rounds, None, [], found.variants, "its reference ran under another protocol")
        level = fmean(measures.value(cell.measure, run) for run in same[0].runs)
        values = [level - value for value in values]
    if len(variant.runs) < len(own):
        lacking = "; ".join([f"{len(variant.runs)} of {len(own)} {table.repetitions}", *filter(None, [lacking])])
    return Measured(cell, printed, rounds, variant, values, others, lacking)


def _of_both(deviation: Deviation) -> list[str]:
    return [repr(each) for each in deviation]


def digits(cell: Cell) -> int:
    """The number of decimals with which a cell's values are shown."""
    return 2 if cell.measure.is_accuracy else 0 if cell.measure.kind == "rounds_to" else 4


def number(value: float, cell: Cell) -> str:
    """A value as its cell shows it."""
    if math.isinf(value):
        return "not reached"
    return NOTHING if math.isnan(value) else f"{value:.{digits(cell)}f}"
