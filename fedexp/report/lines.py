"""Lines of a published table whose cells are compared with one another: which cell of each is the best, and whether
they rank as in the paper."""

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

from fedexp.report import agreement
from fedexp.report.groups import by_key
from fedexp.report.measured import Measured, number
from fedexp.report.page import NOTHING, Entry, Sheet
from fedexp.sweep.table import Cell, Table


class Line:
    """A line of cells that are compared with one another. measured: those that were; compared: the largest group of
    these that ran under protocols that deviate in the same way, on the same data; ranked: these without targets that
    were not reached in fewer rounds than the protocol has, since they may be reached later; best, printed_best: the
    best of them as measured and as printed; correlation: Spearman's, of what was measured and what was printed."""

    def __init__(self, table: Table, name: str, cells: list[Measured]) -> None:
        self.name, self.cells = name, cells
        self.higher = cells[0].cell.measure.higher_is_better
        self.measured = [each for each in cells if each.values]
        alike = by_key(self.measured, lambda each: repr(each.variant.protocol)).values()
        self.compared = min(alike, key=lambda some: (-len(some), len(some[0].variant.protocol)), default=[])
        self.ranked = [each for each in self.compared if math.isfinite(each.mean) or not each.variant.is_short]
        self.correlation = agreement.rank_correlation([(each.mean, each.printed.number) for each in self.ranked])
        names = [_other(table, each.cell) for each in self.ranked]
        self.best = agreement.winner(dict(zip(names, (each.mean for each in self.ranked))), self.higher)
        printed = dict(zip(names, (each.printed.number for each in self.ranked)))
        self.printed_best = agreement.winner(printed, self.higher)

    @property
    def protocol(self) -> tuple[Any, ...] | None:
        """Of the protocols under which the most measured cells have runs of all rounds, the nearest to the paper's;
        None if no more cells have such runs than are compared, or if a cell shows the very runs that it asks for."""
        if any(each.variant.asked for each in self.measured):
            return None
        shared: dict[str, list[tuple[Any, ...]]] = {}
        for each in self.measured:
            whole = [variant.protocol for variant in (each.variant, *each.others) if not variant.is_short]
            for name, protocol in {repr(protocol): protocol for protocol in whole}.items():
                shared.setdefault(name, []).append(protocol)
        most = min(shared.values(), key=lambda some: (-len(some), len(some[0])), default=[])
        return most[0] if len(most) > len(self.compared) else None

    def row(self) -> list[Entry]:
        correlation = NOTHING if math.isnan(self.correlation) else f"{self.correlation:+.2f}"
        alone = len(self.compared) < 2 <= len(self.measured)
        best, compared = ("not comparable", 0) if alone else (self.best, len(self.compared))
        texts = [self.name, best, self.printed_best, correlation, f"{compared} of {len(self.cells)}"]
        return [Entry(text) for text in texts]


def lines(table: Table, measured: list[Measured]) -> list[Line]:
    """Rows, or columns if the table says so, of more than one cell."""
    found = by_key(measured, lambda each: each.cell.row if table.compare == "columns" else each.cell.column)
    return [Line(table, name, cells) for name, cells in found.items() if len(cells) > 1]


def of_one_protocol(
    table: Table, measured: list[Measured], again: Callable[[Cell, tuple[Any, ...]], Measured]
) -> list[Measured]:
    """The same cells, those of a line measured by runs of one protocol where more of them share one than are alike as
    they stand, so that these can be compared. again: a cell as runs of a protocol measure it, if it has any."""
    chosen: dict[tuple[str, str], Measured] = {}
    for line in lines(table, measured):
        if (protocol := line.protocol) is not None:
            found = [again(each.cell, protocol) for each in line.measured]
            if all(each.values for each in found):  # a reduction has none if its reference ran otherwise
                chosen |= {each.place: each for each in found}
    return [chosen.get(each.place, each) for each in measured]


def marks(table: Table, measured: list[Measured]) -> dict[tuple[str, str], str]:
    """Best and second best along each line, of the cells that are compared."""
    found: dict[tuple[str, str], str] = {}
    for line in lines(table, measured):
        values = {each.place: each.mean for each in line.compared if math.isfinite(each.mean)}
        shown = {each.place: number(each.mean, each.cell) for each in line.compared}
        found |= agreement.marks(values, shown, line.higher)
    return found


def rank_agreement(table: Table, measured: list[Measured]) -> str:
    """Whether the lines rank as in the paper, as a sentence; empty if none can be compared."""
    decided = [line for line in lines(table, measured) if len(line.ranked) > 1]
    if not decided:
        return ""
    agreed = sum(line.best == line.printed_best for line in decided)
    correlations = [line.correlation for line in decided if not math.isnan(line.correlation)]
    mean = f"; mean rank correlation {fmean(correlations):+.2f}" if correlations else ""
    all_of_them = f"the {len(decided)} lines" if len(decided) > 1 else "1 line"
    return f"The best of those compared is the paper's in {agreed} of {all_of_them} that can be compared{mean}."


def sheet(table: Table, measured: list[Measured]) -> Sheet:
    """The lines in which something was measured."""
    header = ["", "best as measured", "best as published (of those compared)", "Spearman", "cells compared"]
    caption = "In each line, the largest group of cells whose runs agree in protocol and data is compared."
    rows = [line.row() for line in lines(table, measured) if line.measured]
    return Sheet("Agreement with the paper", header, rows, caption)


def _other(table: Table, cell: Cell) -> str:
    return cell.column if table.compare == "columns" else cell.row
