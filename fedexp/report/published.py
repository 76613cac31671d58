"""The values that the papers print: one csv file per table (published/), one line per cell."""

import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import pandas as pd

from fedexp.errors import ConfigError, require
from fedexp.sweep.table import Cell


@dataclass(frozen=True)
class Published:
    """A printed cell: its value in the table's own unit (None: not reached), its spread and remarks."""

    index: int
    value: float | None
    std: float | None
    note: str

    @property
    def number(self) -> float:
        """The value; infinity for a target not reached."""
        return math.inf if self.value is None else self.value


def names() -> list[str]:
    """All tables that have published values."""
    return sorted(path.name.removesuffix(".csv") for path in (files("fedexp.report") / "published").iterdir())


@cache
def lines(table: str) -> pd.DataFrame:
    """A table's printed cells, all columns as text."""
    right = "has no published values; compare its runs by their folder: fedexp report FOLDER"
    require(table in names(), "table.name", table, right)
    with (files("fedexp.report") / "published" / f"{table}.csv").open() as file:
        return pd.read_csv(file, dtype=str, keep_default_na=False)


@cache
def _plain_lines(table: str) -> list[dict[str, str]]:
    """The same as plain values: a frame would take most of the time of finding a thousand cells."""
    return [{str(column): text for column, text in line.items()} for line in lines(table).to_dict("records")]


def find(table: str, cell: Cell) -> Published:
    """The one printed cell that agrees with `cell.published` in every column named there (for note: its beginning)."""
    for column in cell.published:
        require(column in lines(table), "table.published", column, f"is not a column of {table}.csv")
    chosen = [
        (index, line) for index, line in enumerate(_plain_lines(table))
        if all(_agrees(column, line[column], value) for column, value in cell.published.items())
    ]  # fmt: skip
    if len(chosen) != 1:
        said = ", ".join(f"{column}={value}" for column, value in cell.published.items())
        raise ConfigError("table.published", cell.name, f"{len(chosen)} printed cells have {said}; must be one")
    ((index, line),) = chosen
    return Published(index, _number(line["value"]), _number(line["std"]), line["note"])


def _agrees(column: str, text: str, value: str) -> bool:
    return text.startswith(value) if column == "note" else text == value


def _number(text: str) -> float | None:
    return float(text) if text else None
