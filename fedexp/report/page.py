"""What a report consists of, whatever it is written as."""

from dataclasses import dataclass, field

import pandas as pd

NOTHING = "\u2013"  # stands where there is no value


@dataclass(frozen=True)
class Entry:
    """One place of a sheet. `main` stands out (mark: best, second, or none), `aside` stands beside it."""

    main: str
    aside: str = ""
    mark: str = ""
    missing: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table with its caption; the first column names the rows."""

    title: str
    header: list[str]
    rows: list[list[Entry]]
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure, as a file's content: svg or png."""

    title: str
    kind: str
    content: bytes
    group: str = ""


@dataclass
class Page:
    """A whole report. `records`: everything in long form, for the csv."""

    name: str
    title: str
    lead: list[str] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    records: pd.DataFrame = field(default_factory=pd.DataFrame)
