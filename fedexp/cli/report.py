"""Compare runs with published values, or with each other.

    python -m fedexp report table=fedcat_1                  a table, with all runs in outputs/
    python -m fedexp report table=fedcat_1 rounds=50        runs of another protocol: the sweep's own overrides
    python -m fedexp report table=fedcat_1 +scale=quick
    python -m fedexp report outputs/                        any runs, by the keys in which they differ, a page for each
                                                            data set; and the tables of each paper whose protocol some
                                                            of them follow, with what outputs/remarks.yaml, if it
                                                            is there, says of a table (fedcat_1: "One seed.")
    python -m fedexp report outputs/ baseline=fedavg targets=0.8
    python -m fedexp report table=fedcat_1 --dashboard      make a wandb dashboard, or describe it; writes no files

baseline=NAME      the option (or KEY=VALUE) with which all others are compared, paired by seed; by default fedavg
targets=A          test accuracy (a fraction) for which the rounds, bytes and seconds needed are reported; several:
                   targets=[0.7,0.8]; by default the runs' `targets`, or else about the baseline's best accuracy
--to FOLDER        the folder for the files; by default OUTPUT_ROOT/reports/NAME

The files: text (md), tables for a paper (tex), one line per run (csv), an interactive page (html), figures (png, pdf).
"""

import argparse
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from fedexp.cli import console
from fedexp.config.compose import composing
from fedexp.config.words import parsed
from fedexp.errors import ConfigError, require
from fedexp.record.terminal import log_to_terminal
from fedexp.report.any_runs import by_data_set
from fedexp.report.comparison import compare
from fedexp.report.dashboard import dashboard
from fedexp.report.folders import read
from fedexp.report.page import Page
from fedexp.report.paper_pages import paper_pages, read_remarks
from fedexp.report.writers import beside, terminal, write
from fedexp.sweep.jobs import sweeps

_OWN = ("baseline=", "targets=")  # words for the report, not for its runs


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's garbage collector. It goes again and again through all that imported modules and runs hold,
    which stays until the report is written: a seventh of the time with a thousand runs."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_uncollected()
def main(words: list[str]) -> None:
    """Write and show the reports that the words ask for. Raises ConfigError where there is nothing to report on."""
    log_to_terminal()
    parser = argparse.ArgumentParser(prog="python -m fedexp report", add_help=False)
    parser.add_argument("words", nargs="+", metavar="FOLDER or KEY=VALUE")
    parser.add_argument("--to", type=Path, metavar="FOLDER")
    parser.add_argument("--dashboard", action="store_true")
    chosen = parsed(parser, words)
    folders = [Path(word) for word in chosen.words if os.path.isdir(word)]
    overrides = [word for word in chosen.words if not os.path.isdir(word)]
    for word in overrides:
        require("=" in word, "", word, "is neither a folder that is there nor an override like table=fedcat_1")
    own = dict(word.split("=", 1) for word in overrides if word.startswith(_OWN))
    overrides = [word for word in overrides if not word.startswith(_OWN)]
    asked = {"baseline": own.get("baseline"), "targets": _targets(own.get("targets"))}
    if chosen.dashboard:  # made in wandb from a table's runs there
        where = " ".join(map(str, folders))
        right = "is for a table's runs in wandb, not for folders; give table=NAME"
        require(not folders, "--dashboard", where, right)
        require(chosen.to is None, "--to", chosen.to, "--dashboard writes no files; leave one of the two out")
    if folders and not any(word.lstrip("+").startswith("table=") for word in overrides):
        _any_runs(folders, overrides, chosen.to, asked)
        return
    with composing():
        _tables(overrides, folders, chosen.to, chosen.dashboard, asked)


def _targets(text: str | None) -> list[float] | None:
    """The targets in `0.8` or `[0.7,0.8]`."""
    if text is None:
        return None
    try:
        found = yaml.safe_load(text)
        return [float(each) for each in (found if isinstance(found, list) else [found])]
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise ConfigError("targets", text, "must be a fraction, or a list of them: [0.7,0.8]") from error


def _any_runs(folders: list[Path], rest: list[str], to: Path | None, asked: dict[str, Any]) -> None:
    right = "cannot be combined with folders, only baseline=, targets= and --to can; or name a table: table=fedcat_1"
    require(not rest, "", " ".join(rest), right)
    runs, remarks = read(*folders), read_remarks(folders[0])
    require(bool(runs), "", " ".join(map(str, folders)), "no runs there")
    reports, pages = to or beside(folders[0]), by_data_set(runs, **asked)
    for page in pages:
        _write(page, to if to is not None and len(pages) == 1 else reports / page.name)
    of_papers = 0
    for page in paper_pages(runs, asked["targets"], remarks=remarks):  # they need not have the baseline asked for
        _write(page, reports / page.name)
        of_papers += 1
    right = "only folders of `fedexp study` there, and none that belongs in a paper's table"
    require(bool(pages) or of_papers > 0, "", " ".join(map(str, folders)), right)


def _tables(
    words: list[str], folders: list[Path], to: Path | None, wants_dashboard: bool, asked: dict[str, Any]
) -> None:
    words = [f"+{word}" if word.startswith("table=") else word for word in words]
    every = sweeps(words)
    for sweep in every:
        named = sweep.table is not None
        require(named, "", " ".join(words), "name a table (table=fedcat_1) or a folder with runs")
        sweep.check()
        composed = [job for job in sweep.jobs if job.plain is not None]
        if wants_dashboard:
            dashboard(sweep)
            continue
        root = Path(composed[0].plain["output_root"]).expanduser()
        page = compare(sweep, read(*(folders or [root])), **asked)
        own = root / "reports" / page.name if to is None else to / page.name if len(every) > 1 else to
        _write(page, own)  # in a folder of its own: pictures of several tables have the same names


def _write(page: Page, to: Path) -> None:
    """Write all files of a report, and print its text."""
    written = write(page, to)
    terminal(page, console(200))
    print(written)
