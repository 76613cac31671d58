"""A published table, with the measured values beside the printed ones."""

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import fmean

import pandas as pd

from fedexp.report import agreement, curves, maps
from fedexp.report.groups import Group, by_key
from fedexp.report.matching import Matcher, Variant, in_words
from fedexp.report.measured import Measured, digits, measure, number
from fedexp.report.page import NOTHING, Entry, Page, Picture, Sheet
from fedexp.report.results import sheets
from fedexp.report.runs import Recorded
from fedexp.sweep.jobs import Sweep
from fedexp.sweep.table import Cell, Table

_NEAR = 1.5  # percentage points: a measured accuracy at most this far from the published one agrees with it


def compare(
    sweep: Sweep, runs: Sequence[Recorded], targets: Sequence[float] | None = None, baseline: str | None = None,
    shorter: bool = False,
) -> Page:  # fmt: skip
    """The report of a table. sweep: the runs that its command line asks for; runs: those that exist; targets, baseline:
    as in any_runs.compare_runs. shorter: runs of fewer rounds than asked for count too, and are marked."""
    table = sweep.table
    matcher = Matcher(runs, sweep.scale, shorter, of_study=table.program is not None)
    jobs = by_key(sweep.jobs, lambda job: (job.cell.row, job.cell.column, job.reference))
    peers = [each[0] for each in jobs.values() if each[0].plain is not None]
    measured = [measure(table, cell, jobs, peers, matcher) for cell in table.cells]
    page = Page(table.name, table.title, records=_records(table, measured))
    if sweep.scale:
        page.name, page.title = f"{table.name}_{sweep.scale}", f"{table.title} ({sweep.scale})"
    page.lead = _lead(sweep, measured)
    page.sheets = [_sheet(table, measured), _what_was_run(table, measured), _agreement(table, measured)]
    if groups := _groups(table, measured):
        page.sheets += sheets(groups, targets, baseline)[0]
    page.notes = _notes(measured)
    page.pictures = _pictures(table, measured, with_published=not sweep.scale)
    return page


def _lead(sweep: Sweep, measured: list[Measured]) -> list[str]:
    table = sweep.table
    done = [each for each in measured if each.values]
    kinds = dict.fromkeys(cell.measure.words for cell in table.cells)
    lines = [
        f"{len(done)} of {len(measured)} cells measured; {table.repetitions} asked for: {len(table.seeds)}. A cell: "
        f"measured mean ± standard deviation over {table.repetitions} (published, difference); {', '.join(kinds)}. "
        "Best in bold, second best underlined or in italics.",
        *([_in_full(measured)] if table.program is None else []),
    ]
    if not sweep.scale:
        return lines
    return [
        f"Scale: {sweep.scale}. The runs are made smaller than the paper's and use embedded data in place of the "
        "published; they show that the table works, not what it would say.",
        *lines,
    ]


def _in_full(measured: list[Measured]) -> str:
    """How many accuracies were measured in all of the protocol's rounds, and how many of these are near the paper's."""
    full = [
        each for each in measured
        if each.cell.measure.is_accuracy and each.variant.rounds == each.rounds_of_protocol
        and not math.isnan(each.difference)
    ]  # fmt: skip
    if not full:
        return "No cell was run for all rounds of the protocol."
    near = [each for each in full if abs(each.difference) <= max(_NEAR, each.printed.std or 0.0)]
    return (
        f"Cells that were run for all rounds of the protocol: {len(full)}. Those of them within {_NEAR} points of what "
        f"was published, or within the published standard deviation where that is more: {len(near)}."
    )


def _sheet(table: Table, measured: list[Measured]) -> Sheet:
    marks = _marks(table, measured)
    entries = {each.place: _entry(each, marks.get(each.place, "")) for each in measured}
    rows = [[Entry(row), *(entries.get((row, column), Entry("")) for column in table.columns)] for row in table.rows]
    return Sheet("Measured beside published", ["", *table.columns], rows)


def _what_was_run(table: Table, measured: list[Measured]) -> Sheet:
    rows = []
    for row, there in by_key(measured, lambda each: each.cell.row).items():
        done = [each for each in there if each.values]
        seeds = _range(len(each.values) for each in done)
        counted = table.program is None  # a study has no rounds
        rounds = _range(each.variant.rounds for each in done if counted)
        asked = _range(each.rounds_of_protocol for each in done if each.rounds_of_protocol and counted)
        data = dict.fromkeys(each.variant.data for each in done)
        made_by = [run.commit for each in done for run in each.variant.runs]
        commits = dict.fromkeys(commit for commit in made_by if commit)  # an installed wheel has none
        texts = [
            row, f"{len(done)} of {len(there)}", f"{seeds} / {len(table.seeds)}", f"{rounds} / {asked}",
            ", ".join(data) or NOTHING, ", ".join(commits) or NOTHING,
        ]  # fmt: skip
        rows.append([Entry(text) for text in texts])
    header = ["", "cells", f"{table.repetitions} / asked", "rounds run / in the protocol", "data used", "commit"]
    return Sheet("What was run", header, rows)


def _marks(table: Table, measured: list[Measured]) -> dict[tuple[str, str], str]:
    """Best and second best along each line whose cells are comparable (`_alike`)."""
    found: dict[tuple[str, str], str] = {}
    for line in _compared(table, measured).values():
        if not _alike(line):
            continue
        values = {each.place: each.mean for each in line}
        shown = {each.place: number(each.mean, each.cell) for each in line}
        found |= agreement.marks(values, shown, line[0].cell.measure.higher_is_better)
    return found


def _compared(table: Table, measured: list[Measured]) -> dict[str, list[Measured]]:
    """Cells that are compared with one another: those of a row, or those of a column if the table says so."""
    lines = by_key(measured, lambda each: each.cell.row if table.compare == "columns" else each.cell.column)
    return {name: line for name, line in lines.items() if len(line) > 1}


def _other(table: Table, cell: Cell) -> str:
    return cell.column if table.compare == "columns" else cell.row


def _alike(line: list[Measured]) -> bool:
    """Whether the measured cells of a line ran under protocols that deviate in the same way, on the same data."""
    return len({(_shared(each.variant), each.variant.data) for each in line if each.values}) <= 1


def _shared(variant: Variant) -> str:
    """The deviation in keys that do not belong to an algorithm or a model."""
    return repr([part for part in variant.deviation if not part[0].startswith(("algorithm.", "model."))])


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


def _range(numbers: Iterable[int]) -> str:
    known = sorted(set(numbers))
    return NOTHING if not known else str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


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
    caption += "Lines whose runs differ in protocol or data are not compared."
    return Sheet("Agreement with the paper", header, rows, caption)


def _notes(measured: list[Measured]) -> list[str]:
    notes = []
    for each in measured:
        if each.variant.said():
            notes.append(f"* {each.cell.name}: {each.variant.said()}.")
        if each.variant.diverged:
            notes.append(f"† {each.cell.name}: {each.variant.diverged} of {len(each.variant.runs)} runs diverged.")
        if unlearned := sum(run.at_chance for run in each.variant.runs):
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
        for each in measured if each.has_curves
    ]  # fmt: skip


def _pictures(table: Table, measured: list[Measured], with_published: bool) -> list[Picture]:
    """For each row the curves, and the partition of one of its runs."""
    pictures, looks = [], {name: own for own, name in enumerate(table.columns)}
    for place, row in enumerate(table.rows, 1):
        there = [each for each in measured if each.cell.row == row and each.has_curves]
        if not there:
            continue
        groups = {each.cell.column: each.variant.runs for each in there}
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
            "rounds": each.variant.rounds if each.values else None, "rounds_published": each.rounds_of_protocol,
            "data": each.variant.data if each.values else None,
            "deviation": "; ".join(in_words(*part) for part in each.variant.deviation),
            "lacking": each.lacking,
            "runs": " ".join(run.fingerprint for run in each.variant.runs),
        }
        for each in measured
    ])  # fmt: skip
