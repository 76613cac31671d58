"""The runs behind a published table's cells, compared like any runs, with their curves and partitions.

The same runs can stand behind several rows, of one table or of several tables of a paper: they are shown once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from fedexp.report import curves, lines, maps
from fedexp.report.groups import Group
from fedexp.report.measured import Measured
from fedexp.report.page import Curves, Picture
from fedexp.sweep.table import Table


@dataclass(frozen=True)
class Row:
    """The cells of a row that were measured by runs with curves. number: its place in the table, from 1; name: its own,
    and those of further rows with the same curves; with_published: whether printed accuracies are shown."""

    number: int
    name: str
    cells: list[Measured]
    with_published: bool

    @property
    def final(self) -> dict[str, float]:
        """The printed final accuracies by column."""
        return {
            each.cell.column: each.printed.value for each in self.cells
            if self.with_published and each.cell.measure.higher_is_better and each.printed.value is not None
        }  # fmt: skip

    @property
    def runs(self) -> dict[str, frozenset[Path]]:
        """The folders of the runs by column."""
        return {each.cell.column: frozenset(run.path for run in each.variant.runs) for each in self.cells}

    @property
    def curves(self) -> Curves:
        """What its picture shows."""
        return {runs: self.final.get(column) for column, runs in self.runs.items()}

    def is_within(self, others: Sequence[Curves]) -> bool:
        """Whether all of its curves stand together in another picture, beside the same published values."""
        own = self.curves.items()
        return any(all(runs in each and value in (None, each[runs]) for runs, value in own) for each in others)


def rows_with_curves(table: Table, measured: list[Measured], with_published: bool) -> list[Row]:
    """The table's rows that have curves, those with the same ones joined."""
    found: list[Row] = []
    for number, name in enumerate(table.rows, 1):
        cells = [each for each in measured if each.cell.row == name and each.has_curves]
        if not cells:
            continue
        row = Row(number, name, cells, with_published)
        for place, other in enumerate(found):
            if (row.runs, row.final) == (other.runs, other.final):
                found[place] = replace(other, name=f"{other.name}, {name}")
                break
        else:
            found.append(row)
    return found


def groups(table: Table, rows: Sequence[Row], measured: list[Measured]) -> list[Group]:
    """The rows' cells, as groups to be compared like any runs. A cell whose runs differ in protocol or data from those
    that are compared in its line stands by itself."""
    apart: set[tuple[str, str]] = set()
    for line in lines.lines(table, measured):
        apart |= {each.place for each in line.cells} - {each.place for each in line.compared}
    made = []
    for row in rows:
        for each in row.cells:
            column, runs = each.cell.column, each.variant.runs
            name = f"{row.name} {column}".strip()
            problem = column if table.compare == "rows" else row.name
            keys = {"row": row.name, "column": column}
            made.append(Group(name, keys, name if each.place in apart else problem, runs, name))
    return made


def pictures(table: Table, rows: Sequence[Row]) -> Iterator[Picture]:
    """For each row the curves, and the partition of one of its runs."""
    looks = {name: own for own, name in enumerate(table.columns)}
    for row in rows:
        of = {each.cell.column: each.variant.runs for each in row.cells}
        yield curves.picture(f"accuracy_{row.number}", f"{row.name}: test accuracy", of, row.final, looks, row.name)
        title = f"{row.name}: examples of each class that each client holds"
        shown = (maps.partition(f"partition_{row.number}", title, runs[0], row.name) for runs in of.values())
        yield from islice(filter(None, shown), 1)
