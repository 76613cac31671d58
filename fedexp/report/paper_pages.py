"""Runs of papers' protocols beside the printed values: one page per paper."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import yaml
from hydra import initialize_config_dir

from fedexp.config.compose import CONF, Composer
from fedexp.report.comparison import compare
from fedexp.report.groups import by_key
from fedexp.report.page import Page
from fedexp.report.runs import Recorded
from fedexp.sweep.jobs import sweeps


def paper_pages(
    runs: Sequence[Recorded], targets: Sequence[float] | None = None, baseline: str | None = None
) -> Iterator[Page]:
    """A page for each paper whose protocol some of the runs follow (their key `paper`), in one reading or another, and
    of whose tables they measured some cell: those tables, one after another. targets and baseline: as in
    any_runs.compare_runs."""
    for paper, tables in by_key(_tables(), lambda table: str(table.get("paper"))).items():
        own = [run for run in runs if re.match(rf"{paper}(_|$)", str(run.config.get("paper")))]
        ran, studied = (
            any(each) for each in ([not run.is_study for run in own], [len(run.information) for run in own])
        )
        possible = [table["name"] for table in tables if (studied if "program" in table else ran)]
        if not possible:
            continue
        with initialize_config_dir(str(CONF), version_base="1.3"):
            composer = Composer()  # shared by the tables of a paper
            pages = [
                compare(sweep, own, targets, baseline, shorter=True)
                for table in possible for sweep in sweeps([f"+table={table}"], composer)
            ]  # fmt: skip
        measured = [page for page in pages if page.records["measured"].notna().any()]
        if measured:
            yield _joined(paper, measured)


def _tables() -> list[dict[str, Any]]:
    """The published tables as their files have them."""
    return [yaml.safe_load(file.read_text()) for file in sorted((CONF / "table").glob("*.yaml"))]


def _joined(paper: str, pages: Sequence[Page]) -> Page:
    """The pages of a paper's tables as one page, in which each part names its table."""
    name = pages[0].title.partition(",")[0]  # of "FedCat, table 1: ..."
    whole = Page(paper, f"{name}: measured beside published")
    for page in pages:
        whole.lead += [f"{page.title}. {page.lead[0]}", *page.lead[1:]]
        table = page.title.partition(":")[0]  # "FedCat, table 1"
        whole.sheets += [replace(sheet, title=f"{table}: {sheet.title}") for sheet in page.sheets]
        whole.notes += [f"{table}: {note}" for note in page.notes]
        whole.pictures += [
            replace(each, name=f"{page.name}_{each.name}", title=f"{table}: {each.title}")
            for each in page.pictures
        ]  # fmt: skip
    whole.records = pd.concat([page.records for page in pages], ignore_index=True)
    return whole
