"""A published table, with the measured values beside the printed ones."""

import math
from collections.abc import Sequence
from itertools import islice
from statistics import fmean

import pandas as pd

from fedexp.report import agreement, curves, maps
from fedexp.report.groups import Group
from fedexp.report.matching import Matcher, in_words
from fedexp.report.measured import Measured, digits, key, measure, number
from fedexp.report.page import NOTHING, Entry, Page, Picture, Sheet
from fedexp.report.results import sheets
from fedexp.report.runs import Recorded
from fedexp.sweep.jobs import Job, Sweep
from fedexp.sweep.table import Cell, Table

_NEAR = 1.5  # percentage points: a measured accuracy at most this far from the published one agrees with it


def compare(
    sweep: Sweep, runs: Sequence[Recorded], targets: Sequence[float] | None = None, baseline: str | None = None,
    shorter: bool = False,
) -> Page:  # fmt: skip
    """The report of a table. sweep: the runs that its command line asks for; runs: those that exist; targets, baseline:
    as in any_runs.compare_runs. shorter: runs of fewer rounds than asked for count too, and are marked."""
    table, matcher = sweep.table, Matcher(runs, sweep.scale, shorter)
    jobs: dict[str, list[Job]] = {}
    for job in sweep.jobs:
        jobs.setdefault(key(job.cell, job.reference), []).append(job)
    peers = [each[0] for each in jobs.values() if each[0].plain is not None]
    measured = [measure(table, cell, jobs, peers, matcher) for cell in table.cells]
    page = Page(table.name, table.title, records=_records(table, measured))
    if sweep.scale:
        page.name, page.title = f"{table.name}_{sweep.scale}", f"{table.title} ({sweep.scale})"
    page.lead = _lead(sweep, measured)
    page.sheets = [_sheet(table, measured), _what_was_run(table, measured), _agreement(table, measured)]
    groups = _groups(table, measured)
    if groups:
        page.sheets += sheets(groups, targets, baseline)[0]
    page.notes = _notes(measured)
    page.pictures = _pictures(table, measured, with_published=not sweep.scale)
    return page


def _lead(sweep: Sweep, measured: list[Measured]) -> list[str]:
    table = sweep.table
    done = [each for each in measured if each.values]
    kinds = list(dict.fromkeys(cell.measure.words for cell in table.cells))
    lines = [
        f"{len(done)} of {len(measured)} cells measured; {table.repetitions} asked for: {len(table.seeds)}. A cell: "
        f"measured mean ± standard deviation over {table.repetitions} (published, difference); {', '.join(kinds)}. "
        "Best in bold, second best underlined or in italics.",
        *_in_full(measured),
    ]
    if sweep.scale:
        lines.insert(
            0,
            f"Scale: {sweep.scale}. The runs are made smaller than the paper's and use embedded data in place of the "
            "published; they show that the table works, not what it would say.",
        )
    return lines


def _in_full(measured: list[Measured]) -> list[str]:
    """How many accuracies were measured in all of the protocol's rounds, and how many of these are near the paper's."""
    full = [
        each for each in measured
        if each.cell.measure.is_accuracy and each.variant and each.variant.rounds == each.rounds_of_protocol
        and not math.isnan(each.difference)
    ]  # fmt: skip
    near = [each for each in full if abs(each.difference) <= max(_NEAR, each.printed.std or 0.0)]
    if not full:
        return ["No cell was run for all rounds of the protocol."]
    return [
        f"{len(full)} cells were run for all rounds of the protocol; {len(near)} of them are within {_NEAR} points, or "
        "within the published standard deviation where that is more, of what was published."
    ]


def _sheet(table: Table, measured: list[Measured]) -> Sheet:
    at = {(each.cell.row, each.cell.column): each for each in measured}
    mark = _marks(table, measured)
    rows = []
    for row in table.rows:
        entries = [
            _entry(at[row, column], mark.get((row, column), "")) if (row, column) in at else Entry("")
            for column in table.columns
        ]
        rows.append([Entry(row), *entries])
    return Sheet("Measured beside published", ["", *table.columns], rows)


def _what_was_run(table: Table, measured: list[Measured]) -> Sheet:
    rows = []
    for row in table.rows:
        there = [each for each in measured if each.cell.row == row]
        done = [each for each in there if each.variant]
        seeds = sorted({len(each.values) for each in done})
        rows.append([
            Entry(row), Entry(f"{len(done)} of {len(there)}"), Entry(f"{_range(seeds)} / {len(table.seeds)}"),
            Entry(_rounds(there)), Entry(_data(there) or NOTHING), Entry(_commits(done) or NOTHING),
        ])  # fmt: skip
    header = ["", "cells", f"{table.repetitions} / asked", "rounds run / in the protocol", "data used", "commit"]
    return Sheet("What was run", header, rows)


def _marks(table: Table, measured: list[Measured]) -> dict[tuple[str, str], str]:
    """Best and second best along each line whose cells are comparable (`_alike`)."""
    found: dict[tuple[str, str], str] = {}
    for line in _compared(table, measured).values():
        if not _alike(line):
            continue
        values = {_other(table, each.cell): each.mean for each in line}
        shown = {_other(table, each.cell): number(each.mean, each.cell) for each in line}
        chosen = agreement.marks(values, shown, line[0].cell.measure.higher_is_better)
        found |= {(each.cell.row, each.cell.column): chosen.get(_other(table, each.cell), "") for each in line}
    return found


def _compared(table: Table, measured: list[Measured]) -> dict[str, list[Measured]]:
    """Cells that are compared with one another: those of a row, or those of a column if the table says so."""
    lines: dict[str, list[Measured]] = {}
    for each in measured:
        name = each.cell.row if table.compare == "columns" else each.cell.column
        lines.setdefault(name, []).append(each)
    return {name: line for name, line in lines.items() if len(line) > 1}


def _other(table: Table, cell: Cell) -> str:
    return cell.column if table.compare == "columns" else cell.row


def _alike(line: list[Measured]) -> bool:
    """Whether the measured cells of a line ran under protocols that deviate in the same way, on the same data."""
    return len({(_shared(each), each.variant.data) for each in line if each.variant}) <= 1


def _shared(each: Measured) -> str:
    """The deviation in keys that do not belong to an algorithm or a model."""
    return repr([part for part in each.deviation if not part[0].startswith(("algorithm.", "model."))])


def _entry(each: Measured, mark: str) -> Entry:
    printed = number(each.printed.number, each.cell)
    if each.printed.std is not None:
        printed += f" ± {each.printed.std:g}"
    if not each.values:
        return Entry(NOTHING, f"({printed})", missing=True)
    main = number(each.mean, each.cell)
    if not math.isnan(each.std):
        main += f" ± {number(each.std, each.cell)}"
    gap = f", {each.difference:+.{digits(each.cell)}f}" if not math.isnan(each.difference) else ""
    flags = ("*" if each.variant.said() else "") + ("†" if each.variant.diverged else "")
    return Entry(main + flags, f"({printed}{gap})", mark)


def _rounds(cells: list[Measured]) -> str:
    """Rounds run / in the protocol (not every paper gives them: conf/paper/), as a range if the cells differ."""
    run = sorted({each.variant.rounds for each in cells if each.variant})
    asked = sorted({each.rounds_of_protocol for each in cells if each.rounds_of_protocol})
    return f"{_range(run)} / {_range(asked)}"


def _range(numbers: list[int]) -> str:
    return NOTHING if not numbers else str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _data(cells: list[Measured]) -> str:
    return ", ".join(dict.fromkeys(each.variant.data for each in cells if each.variant))


def _commits(cells: list[Measured]) -> str:
    """The commits of fedexp by which the runs were made."""
    made = [run.result.get("commit") for each in cells if each.variant for run in each.variant.runs]
    return ", ".join(dict.fromkeys(commit for commit in made if commit))  # an installed wheel has none


def _agreement(table: Table, measured: list[Measured]) -> Sheet:
    """The best of each row (or column) as measured and as printed, and Spearman's rank correlation."""
    rows, correlations, agreed, decided = [], [], 0, 0
    for name, line in _compared(table, measured).items():
        higher = line[0].cell.measure.higher_is_better
        both = [each for each in line if each.values]
        correlation = agreement.rank_correlation([(each.mean, each.printed.number) for each in both])
        here = agreement.winner({_other(table, each.cell): each.mean for each in both}, higher)
        there = agreement.winner({_other(table, each.cell): each.printed.number for each in both}, higher)
        alike = _alike(line)
        if alike and len(both) > 1:
            decided, agreed = decided + 1, agreed + (here == there)
            correlations += [] if math.isnan(correlation) else [correlation]
        rows.append([
            Entry(name), Entry(here if alike else "not comparable"), Entry(there),
            Entry(NOTHING if math.isnan(correlation) or not alike else f"{correlation:+.2f}"),
            Entry(f"{len(both)} of {len(line)}"),
        ])  # fmt: skip
    caption = f"The winner agrees in {agreed} of {decided}. " if decided else "Nothing to compare yet. "
    if correlations:
        caption += f"Mean rank correlation {fmean(correlations):+.2f}. "
    header = ["", "best as measured", "best as published (of those measured)", "Spearman", "cells"]
    return Sheet(
        "Agreement with the paper",
        header,
        rows,
        caption + "Lines whose runs differ in protocol or data are not compared.",
    )


def _notes(measured: list[Measured]) -> list[str]:
    notes = []
    for each in measured:
        if each.variant and each.variant.said():
            notes.append(f"* {each.cell.name}: {each.variant.said()}.")
        if each.variant and each.variant.diverged:
            notes.append(f"† {each.cell.name}: {each.variant.diverged} of {len(each.variant.runs)} runs diverged.")
        if each.variant and (unlearned := sum(run.at_chance for run in each.variant.runs)):
            notes.append(f"{each.cell.name}: {unlearned} of {len(each.variant.runs)} runs ended at chance.")
        if each.others:
            said = " | ".join(f"{len(other.runs)} runs, rounds {other.rounds}, {other.said()}" for other in each.others)
            notes.append(f"{each.cell.name}: runs of other protocols exist and are left out: {said}.")
        if each.lacking:
            notes.append(f"{each.cell.name}: {each.lacking}.")
        if each.printed.note and "swapped" in each.printed.note:
            notes.append(f"{each.cell.name}: {each.printed.note}.")
    return _merged(notes)


def _merged(notes: list[str]) -> list[str]:
    """Notes with the same text for several cells, merged into one."""
    cells: dict[str, list[str]] = {}
    for note in notes:
        name, _, text = note.partition(": ")
        cells.setdefault(text, []).append(name)
    return [f"{', '.join(names) if len(names) < 7 else f'{len(names)} cells'}: {text}" for text, names in cells.items()]


def _groups(table: Table, measured: list[Measured]) -> list[Group]:
    """The cells that were measured by runs with a curve, as groups to be compared like any runs."""
    return [
        Group(
            each.cell.name, {"row": each.cell.row, "column": each.cell.column},
            each.cell.column if table.compare == "rows" else each.cell.row, each.variant.runs, each.cell.name,
        )
        for each in measured if each.variant and all(run.curve for run in each.variant.runs)
    ]  # fmt: skip


def _pictures(table: Table, measured: list[Measured], with_published: bool) -> list[Picture]:
    """For each row the curves, and the partition of one of its runs."""
    pictures, looks = [], {name: own for own, name in enumerate(table.columns)}
    for place, row in enumerate(table.rows, 1):
        there = [each for each in measured if each.cell.row == row and each.variant]
        groups = {
            each.cell.column: each.variant.runs for each in there
            if all(run.curve for run in each.variant.runs)
        }  # fmt: skip
        if not groups:
            continue
        final = {
            each.cell.column: each.printed.value for each in there
            if with_published and each.cell.measure.higher_is_better and each.printed.value is not None
        }  # fmt: skip
        pictures.append(curves.picture(f"accuracy_{place}", f"{row}: test accuracy", groups, final, looks, row))
        title = f"{row}: examples of each class that each client holds"
        shown = (maps.partition(f"partition_{place}", title, each.variant.runs[0], row) for each in there)
        pictures += islice(filter(None, shown), 1)
    return pictures


def _records(table: Table, measured: list[Measured]) -> pd.DataFrame:
    return pd.DataFrame([
        {
            "table": table.name, "row": each.cell.row, "column": each.cell.column, "measure": each.cell.measure.words,
            "measured": each.mean, "std": each.std, "seeds": len(each.values), "seeds_asked": len(table.seeds),
            "published": each.printed.number, "published_std": each.printed.std, "difference": each.difference,
            "rounds": each.variant.rounds if each.variant else None, "rounds_published": each.rounds_of_protocol,
            "data": each.variant.data if each.variant else None,
            "deviation": "; ".join(in_words(*part) for part in each.deviation),
            "lacking": each.lacking,
            "runs": " ".join(run.fingerprint for run in each.variant.runs) if each.variant else "",
        }
        for each in measured
    ])  # fmt: skip
