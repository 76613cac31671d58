"""The parts of a report, for all output formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

_MARKS = "<style>.best {font-weight: bold} .second {text-decoration: underline} .aside {display: block}</style>"
Curves = Mapping[frozenset[Path], float | None]  # of a picture: each curve's runs, and the published value beside it
NOTHING = "\u2013"  # stands where there is no value


def plural(number: int, thing: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Entry:
    """One cell of a sheet: `main` is its value (mark: best, second, or none), `aside` a remark beside it."""

    main: str
    aside: str = ""
    mark: str = ""
    missing: bool = False

    def __str__(self) -> str:
        return f"{self.main} ({self.aside})" if self.aside else self.main

    def html(self) -> str:
        listed = "list" if ", " in self.main else ""  # may be broken into lines, as numbers may not
        kind = " ".join(filter(None, ["main", self.mark, "missing" if self.missing else "", listed]))
        aside = f'<span class="aside">{escape(self.aside)}</span>' if self.aside else ""
        return f'<span class="{kind}">{escape(self.main)}</span>{aside}'


@dataclass(frozen=True)
class Sheet:
    """A table with its caption; the first column names the rows. details: number of columns at the end that are shown
    only in a page that can be scrolled and filtered."""

    title: str
    header: list[str]
    rows: list[list[Entry]]
    caption: str = ""
    details: int = 0

    def narrow(self) -> "Sheet":
        """The same sheet without its details."""
        kept = len(self.header) - self.details
        return Sheet(self.title, self.header[:kept], [row[:kept] for row in self.rows], self.caption)

    def entries(self) -> pd.DataFrame:
        """Its entries, with the rows' names as the index."""
        found = pd.DataFrame([row[1:] for row in self.rows], columns=self.header[1:], dtype=object)
        return found.set_axis([row[0].main for row in self.rows], axis=0)

    def html(self) -> str:
        """A table element."""
        style = self.entries().style.format(Entry.html).format_index(escape, axis=0).format_index(escape, axis=1)
        return style.to_html(sparse_index=False, sparse_columns=False, exclude_styles=True)


@dataclass(frozen=True)
class Picture:
    """A figure in two forms: `draw`, if given, makes a matplotlib figure for files called `name`; `chart` makes a
    plotly figure (data and layout) for a browser. Each is drawn when it is needed."""

    name: str
    title: str
    chart: Callable[[], dict[str, Any]]
    draw: Callable[[], Figure] | None = None
    group: str = ""


@dataclass
class Page:
    """A whole report. `records`: everything in long form, for the csv. `curves`: those of a published table's pictures,
    and of the pictures of earlier tables."""

    name: str
    title: str
    lead: list[str] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    records: pd.DataFrame = field(default_factory=pd.DataFrame)
    curves: list[Curves] = field(default_factory=list)

    def __repr__(self) -> str:
        """The page's tables, for a terminal."""
        parts = [f"{sheet.title}\n{sheet.narrow().entries().to_string()}" for sheet in self.sheets]
        return "\n\n".join([self.title, *parts])

    def _repr_html_(self) -> str:
        """The page's tables, for a notebook."""
        parts = [f"<h3>{escape(sheet.title)}</h3>{sheet.narrow().html()}" for sheet in self.sheets]
        return f"{_MARKS}<h2>{escape(self.title)}</h2>{''.join(parts)}"
