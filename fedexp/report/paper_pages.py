"""Runs of papers' protocols beside the printed values: one page per paper."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import yaml

from fedexp.config.compose import Composer, composing
from fedexp.config.options import CONF
from fedexp.errors import ConfigError, require
from fedexp.report.comparison import compare
from fedexp.report.page import Page
from fedexp.report.runs import Recorded
from fedexp.sweep.jobs import sweeps
from fedexp.sweep.table import Cell, Table


def paper_pages(
    runs: Sequence[Recorded], targets: Sequence[float] | None = None, remarks: Mapping[str, str] | None = None
) -> Iterator[Page]:
    """A page for each paper whose protocol some of the runs follow (their key `paper`), in one reading or another, if
    they measured a cell of its tables: those tables, one after another. targets: as in any_runs.compare_runs.
    remarks: what is to be said of tables, by their name; each line becomes a paragraph."""
    for paper, names in _tables().items():
        own = [run for run in runs if re.match(rf"{paper}(_|$)", str(run.config.get("paper")))]
        if not own:
            continue
        with composing():
            composer = Composer()  # shared by the tables of a paper
            tables = [Table.read(composer([f"+table={name}"]).table) for name in names]
            pages: list[Page] = []
            for table in tables:
                wanted = _may_hold(table, own)
                if any(map(wanted, table.cells)):
                    (sweep,) = sweeps([f"+table={table.name}"], composer, wanted=wanted)
                    earlier = pages[-1].curves if pages else []
                    pages.append(compare(sweep, own, targets, shorter=True, earlier=earlier))
        measured = [page for page in pages if page.records["measured"].notna().any()]
        if measured:
            yield _joined(paper, measured, remarks or {})


def _tables() -> dict[str, list[str]]:
    """The names of the published tables by paper, in the order of their numbers."""
    found: dict[str, list[str]] = {}
    for file in sorted((CONF / "table").glob("*.yaml"), key=lambda file: _with_numbers(file.stem)):
        found.setdefault(str(yaml.safe_load(file.read_text()).get("paper")), []).append(file.stem)
    return found


def _with_numbers(name: str) -> list[str | int]:
    """A name to sort by: table 10 after table 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _may_hold(table: Table, runs: Sequence[Recorded]) -> Callable[[Cell], bool]:
    """Whether some run has a cell's data set and algorithm: the others need not be composed, which takes most of the
    time of a page."""
    there = {
        (run.name("dataset"), name)
        for run in runs if run.is_of(study=table.program is not None) for name in (run.name("algorithm"), None)
    }  # fmt: skip
    return lambda cell: (cell.overrides.get("dataset"), cell.overrides.get("algorithm")) in there


def read_remarks(folder: Path) -> dict[str, str]:
    """What the file remarks.yaml in a folder of runs, if there is one, says of published tables, by their name. Raises
    ConfigError for anything else in it."""
    file = folder / "remarks.yaml"
    try:
        found = (yaml.safe_load(file.read_text()) if file.is_file() else None) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError("", file, f"cannot be read ({error})") from error
    known = {name for names in _tables().values() for name in names}
    texts = isinstance(found, dict) and found.keys() <= known and all(isinstance(text, str) for text in found.values())
    require(texts, "", file, f"must give texts by the names of tables, such as {min(known)}: TEXT, and nothing else")
    return found


def _joined(paper: str, pages: Sequence[Page], remarks: Mapping[str, str]) -> Page:
    """The pages of a paper's tables as one page, in which each part names its table."""
    name = pages[0].title.partition(",")[0]  # of "FedCat, table 1: ..."
    whole = Page(paper, f"{name}: measured beside published")
    noted: dict[str, list[str]] = {}  # the tables by what is noted of them
    for page in pages:
        whole.lead.append(" ".join([f"{page.title}.", *page.lead]))
        whole.lead += [" ".join(line.split()) for line in remarks.get(page.name, "").splitlines() if line.strip()]
        table = page.title.partition(":")[0]  # "FedCat, table 1"
        whole.sheets += [replace(sheet, title=f"{table}: {sheet.title}") for sheet in page.sheets]
        for note in page.notes:
            noted.setdefault(note, []).append(table)
        whole.pictures += [
            replace(each, name=f"{page.name}_{each.name}", title=f"{table}: {each.title}")
            for each in page.pictures
        ]  # fmt: skip
    whole.notes = [f"{_together(tables)}: {note}" for note, tables in noted.items()]
    whole.records = pd.concat([page.records for page in pages], ignore_index=True)
    return whole


def _together(tables: Sequence[str]) -> str:
    """Tables of a paper in words: "FedCat, table 1" and "FedCat, table 3" as "FedCat, table 1 and table 3"."""
    return " and ".join([tables[0], *(table.rpartition(", ")[2] for table in tables[1:])])
