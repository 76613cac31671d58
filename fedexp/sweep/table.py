"""A published table as a sweep: rows x columns x seeds, each cell a list of overrides.

A table file (conf/table/) lists `rows` and `columns`. Each entry is a mapping from config keys to values; a
list of values stands for several rows or columns, two lists in one mapping for their product. Such a mapping
can also have these words:

    label      its name; by default the values that distinguish it from the others
    measure    what is read from its runs, if that is not the table's measure
    published  values of columns of the published csv, where they differ from the config's
    columns    (rows only) the columns of this row, if it does not have all of them
    reference  overrides of the run with which a `reduction` is compared
    where      which line of information.csv is read (measure: information)

In label and published, "{partition.target}" stands for that key's value. Each cell is run once for each of
`seeds`, which are values of the key named by `repeats`: the seed, or another key of random draws
(partition.distribution).
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedexp.config.fingerprint import DRAWS
from fedexp.errors import ConfigError, nearest, require

KINDS = ("final", "best", "last", "rounds_to", "reduction", "information")
_DEFAULTS = {
    "name": None, "title": None, "paper": None, "program": None, "measure": "final", "seeds": [0], "select": None,
    "published": None, "reference": None, "compare": "columns", "rows": None, "columns": [], "repeats": "seed",
}  # fmt: skip
_OWN_WORDS = {"label", "measure", "published", "columns", "reference", "where"}
_CSV_COLUMNS = {
    "dataset": "dataset", "partition": "partition", "algorithm": "algorithm", "model": "model",
    "clients": "clients", "clients_per_round": "participants",
}  # fmt: skip
_SHORT = {
    "clients": "N", "clients_per_round": "K", "local.epochs": "E", "local.batch_size": "B", "rounds": "T",
}  # fmt: skip
_NAMES = ("dataset", "partition", "algorithm", "model")  # shown by their value alone


@dataclass(frozen=True)
class Measure:
    """The value that is read from a run. final: the last accuracy; best: the highest accuracy, within `argument`
    rounds if given; last: the mean over the last `argument` evaluations; rounds_to: the first round with accuracy
    `argument`; reduction: how much higher the reference's final accuracy is; information: the column `argument` of the
    line of information.csv whose columns have the values of `where`.
    """

    kind: str
    argument: Any = None
    where: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, said: Any) -> "Measure":
        """The measure written as `final` or `{rounds_to: 0.8}`."""
        kind, argument = next(iter(said.items())) if isinstance(said, Mapping) and said else (said, None)
        require(kind in KINDS, "table.measure", said, nearest(str(kind), KINDS))
        needs, numeric = ("last", "rounds_to", "information"), ("best", "last", "rounds_to")
        fits = kind not in needs if argument is None else kind not in numeric or isinstance(argument, int | float)
        of = "a number" if kind in numeric else "a column of information.csv"
        require(fits, "table.measure", said, f"must be {{{kind}: ...}}, with {of}")
        return cls(kind, argument)

    @property
    def is_accuracy(self) -> bool:
        """Whether it is a fraction, shown as percent."""
        return self.kind in ("final", "best", "last", "reduction")

    @property
    def higher_is_better(self) -> bool:
        return self.kind in ("final", "best", "last")

    @property
    def words(self) -> str:
        return {
            "final": "final accuracy, %",
            "best": "best accuracy, %" if self.argument is None else f"best accuracy within {self.argument} rounds, %",
            "last": f"mean accuracy of the last {self.argument} evaluations, %",
            "rounds_to": f"rounds to {self.argument:.0%}" if self.kind == "rounds_to" else "",
            "reduction": "accuracy below the reference, percentage points",
            "information": str(self.argument).replace("_", " "),
        }[self.kind]


@dataclass(frozen=True)
class Line:
    """A row or a column: its overrides by key, and its own words."""

    overrides: dict[str, Any]
    label: str
    words: dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One cell of the table. published: values of csv columns that identify its published line."""

    row: str
    column: str
    overrides: dict[str, Any]
    measure: Measure
    published: dict[str, str]
    reference: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return f"{self.row} {self.column}".strip()


@dataclass(frozen=True)
class Table:
    """A table as a sweep. seeds: values of the key `repeats`; cells: row by row, those that `select` keeps."""

    name: str
    title: str
    paper: str | None
    seeds: list[int]
    cells: list[Cell]
    program: str | None  # the words after python -m that make its runs, if a sweep cannot
    compare: str  # what is compared: the columns of a row, or the rows of a column
    repeats: str  # the key that takes the values in `seeds`

    @classmethod
    def read(cls, node: DictConfig) -> "Table":
        """The table in the `table` node of a composed config; `select` keeps the cells whose names it matches."""
        given: Any = OmegaConf.to_container(node, resolve=True)
        for key, value in given.items():
            require(key in _DEFAULTS, f"table.{key}", value, f"no such key; {nearest(key, _DEFAULTS)}")
        plain = {**_DEFAULTS, **given}
        for key in ("name", "rows"):
            require(bool(plain[key]), f"table.{key}", plain[key], "must be given")
        columns = _lines(plain["columns"], "columns")
        cells = []
        for row in _lines(plain["rows"], "rows"):
            own = _lines(row.words["columns"], "columns") if "columns" in row.words else columns
            require(bool(own), "table.columns", None, f"must be given, as row {row.label} has none of its own")
            cells += [_cell(plain, row, column) for column in own]
        cells = _selected(cells, plain["select"])
        seeds = plain["seeds"] if isinstance(plain["seeds"], list) else [plain["seeds"]]
        require(bool(seeds), "table.seeds", seeds, "must name at least one")
        require(plain["compare"] in ("columns", "rows"), "table.compare", plain["compare"], "must be columns or rows")
        require(plain["repeats"] in DRAWS, "table.repeats", plain["repeats"], f"must be one of {', '.join(DRAWS)}")
        kept = {key: plain[key] for key in ("name", "paper", "program", "compare", "repeats")}
        return cls(title=plain["title"] or plain["name"], seeds=seeds, cells=cells, **kept)

    @property
    def repetitions(self) -> str:
        """The word for `seeds`: seeds or distributions."""
        return f"{self.repeats.rpartition('.')[2]}s"

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))


def _lines(said: Any, which: str) -> list[Line]:
    """Expand lists of values into products, and label each line by what distinguishes it from the others."""
    said = said if isinstance(said, list) else [said]
    expanded: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for entry in said:
        if not isinstance(entry, dict):
            raise ConfigError(f"table.{which}", entry, "must be a mapping from config keys to values")
        words = {key: value for key, value in entry.items() if key in _OWN_WORDS}
        keys = {key: value if isinstance(value, list) else [value] for key, value in entry.items() if key not in words}
        expanded += [(dict(zip(keys, values)), words) for values in itertools.product(*keys.values())]
    labels = _labels([overrides for overrides, _ in expanded])
    return [Line(own, _fill(words.get("label", label), own), words) for (own, words), label in zip(expanded, labels)]


def _labels(lines: list[dict[str, Any]]) -> list[str]:
    """For each line, as few values as distinguish all lines."""
    keys = dict.fromkeys([*_NAMES, *(key for line in lines for key in line)])
    labels = [""] * len(lines)
    for key in keys:
        said = [_say(key, line[key]) if key in line else "" for line in lines]
        more = [f"{label} {each}".strip() for label, each in zip(labels, said)]
        if labels == [""] * len(lines) or len(set(more)) > len(set(labels)):
            labels = more
    return labels


def _say(key: str, value: Any) -> str:
    return str(value) if key in _NAMES else f"{_SHORT.get(key, key.rsplit('.', 1)[-1])}={value}"


def _fill(text: Any, overrides: dict[str, Any]) -> str:
    return re.sub(r"\{([\w.]+)\}", lambda found: str(overrides.get(found[1], found[0])), str(text))


def _cell(plain: dict[str, Any], row: Line, column: Line) -> Cell:
    overrides = {**row.overrides, **column.overrides}
    measure = Measure.parse(column.words.get("measure") or row.words.get("measure") or plain["measure"])
    published = {csv: str(overrides[key]) for key, csv in _CSV_COLUMNS.items() if key in overrides}
    if measure.kind == "rounds_to":
        published["metric"] = f"rounds_to_{100 * measure.argument:g}_percent"
    elif measure.kind == "information":
        where = {key: _fill(value, overrides) for key, value in row.words.get("where", {}).items()}
        measure = replace(measure, where=where)
        published["metric"] = measure.argument
    reference = dict(overrides) if measure.kind == "reduction" else None
    for said in (plain, row.words, column.words):
        printed = said.get("published") or {}
        require(isinstance(printed, Mapping), "table.published", printed, "must be columns of the printed table's CSV")
        published |= {key: _fill(value, overrides) for key, value in printed.items()}
        if reference is not None:
            reference |= said.get("reference") or {}
    return Cell(row.label, column.label, overrides, measure, published, reference)


def _selected(cells: list[Cell], expression: Any) -> list[Cell]:
    if expression is None:
        return cells
    try:
        chosen = [cell for cell in cells if re.search(str(expression), cell.name)]  # table.select=10 is a number
    except re.error as error:
        raise ConfigError("table.select", expression, f"is not a regular expression ({error})") from error
    names = ", ".join(cell.name for cell in cells[:3])
    require(bool(chosen), "table.select", expression, f"matches no cell's name; names are like: {names}")
    return chosen
