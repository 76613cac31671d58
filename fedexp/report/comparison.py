"""A published table, with the measured values beside the printed ones."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd

from fedexp.config.schema import flat
from fedexp.report import lines, table_runs
from fedexp.report.groups import by_key
from fedexp.report.matching import Matcher, in_words
from fedexp.report.measured import Measured, digits, measure, number
from fedexp.report.page import NOTHING, Curves, Entry, Page, Sheet, plural
from fedexp.report.results import sheets
from fedexp.report.runs import Recorded
from fedexp.sweep.jobs import Sweep
from fedexp.sweep.table import Table

_NEAR = 1.5  # percentage points: a measured accuracy at most this far from the published one agrees with it


def compare(
    sweep: Sweep, runs: Sequence[Recorded], targets: Sequence[float] | None = None, baseline: str | None = None,
    shorter: bool = False, earlier: Sequence[Curves] = (),
) -> Page:  # fmt: skip
    """The report of a table. sweep: the runs that its command line asks for; runs: those that exist; targets, baseline:
    as in any_runs.compare_runs. shorter: runs of fewer rounds than asked for count too, and are marked. earlier: the
    curves of pictures before it, which are not drawn again."""
    asked = dict.fromkeys(flat(job.plain).get(sweep.table.repeats) for job in sweep.jobs if job.plain is not None)
    table = replace(sweep.table, seeds=list(asked) or sweep.table.seeds)
    sweep = replace(sweep, table=table)
    matcher = Matcher(runs, sweep.scale, shorter, of_study=table.program is not None)
    jobs = by_key(sweep.jobs, lambda job: (job.cell.row, job.cell.column, job.reference))
    peers = [each[0] for each in jobs.values() if each[0].plain is not None]
    measured = [measure(table, cell, jobs, peers, matcher) for cell in table.cells]
    measured = lines.of_one_protocol(
        table, measured, lambda cell, protocol: measure(table, cell, jobs, peers, matcher, protocol)
    )
    page = Page(table.name, table.title, records=_records(table, measured))
    if sweep.scale:
        page.name, page.title = f"{table.name}_{sweep.scale}", f"{table.title} ({sweep.scale})"
    page.lead = _lead(sweep, measured)
    page.sheets = [_sheet(table, measured), _what_was_run(table, measured), lines.sheet(table, measured)]
    page.sheets = [sheet for sheet in page.sheets if sheet.rows]
    page.notes = _notes(measured)
    rows = table_runs.rows_with_curves(table, measured, with_published=not sweep.scale)
    shown = [row for row in rows if not row.is_within(earlier)]
    if shown:
        page.sheets += sheets(table_runs.groups(table, shown, measured), targets, baseline)[0]
    if len(shown) < len(rows):
        names = ", ".join(row.name for row in rows if row not in shown)
        page.notes.append(f"{names}: the same runs are compared and drawn with an earlier table.")
    page.pictures = list(table_runs.pictures(table, shown))
    page.curves = [*earlier, *(row.curves for row in shown)]
    return page


def _lead(sweep: Sweep, measured: list[Measured]) -> list[str]:
    table, done = sweep.table, [each for each in measured if each.values]
    seeds = f"{table.repetitions} asked for: {len(table.seeds)}, run: {_range(len(each.values) for each in done)}"
    counted = f"{len(done)} of {len(measured)} cells measured; {seeds}."
    said = " ".join(filter(None, [counted, _in_full(measured), lines.rank_agreement(table, measured)]))
    if not sweep.scale:
        return [said]
    return [
        f"Scale: {sweep.scale}. The runs are made smaller than the paper's and use embedded data in place of the "
        "paper's; they show that the sweep works, not what the paper's setting would give.",
        said,
    ]


def _in_full(measured: list[Measured]) -> str:
    """How many accuracies were measured in all of the protocol's rounds, how many of these are near the paper's, and
    which are not."""
    full = [
        each for each in measured
        if each.cell.measure.is_accuracy and each.variant.rounds == each.rounds_of_protocol
        and not math.isnan(each.difference)
    ]  # fmt: skip
    if not any(each.cell.measure.is_accuracy for each in measured):
        return ""
    if not full:
        return "No accuracy was measured after all rounds of the protocol."
    far = [each for each in full if abs(each.difference) > max(_NEAR, each.printed.std or 0.0)]
    said = (
        f"Accuracies measured after all rounds of the protocol: {len(full)}; of these within {_NEAR} points of what "
        f"was published, or within the published standard deviation where that is more: {len(full) - len(far)}."
    )
    names = (f"{each.cell.name} ({each.difference:+.{digits(each.cell)}f})" for each in far)
    return f"{said} Further off: {', '.join(names)}." if far else said


def _sheet(table: Table, measured: list[Measured]) -> Sheet:
    marks = lines.marks(table, measured)
    entries = {each.place: _entry(each, marks.get(each.place, "")) for each in measured}
    rows = [[Entry(row), *(entries.get((row, column), Entry("")) for column in table.columns)] for row in table.rows]
    kinds = dict.fromkeys(cell.measure.words for cell in table.cells)
    caption = (
        f"Measured mean ± standard deviation over {table.repetitions} (published, difference); {', '.join(kinds)}. "
        "Of those compared, the best in bold, the second best underlined or in italics; "
        "where one of them has a single seed, this is no ranking."
    )
    return Sheet("Measured beside published", ["", *table.columns], rows, caption)


def _what_was_run(table: Table, measured: list[Measured]) -> Sheet:
    rows = []
    for row, there in by_key(measured, lambda each: each.cell.row).items():
        done = [each for each in there if each.values]
        if not done:
            continue
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
    return Entry(main + "".join(_flags(each)), f"({printed}{gap})", mark)


def _flags(each: Measured) -> dict[str, str]:
    """What is to be said beside a cell's value: each with its sign."""
    variant = each.variant
    rounds = f"after {variant.rounds} rounds (protocol: {each.rounds_of_protocol})"
    diverged = f"{variant.diverged} of {len(variant.runs)} runs diverged"
    said = {"*": variant.said(), "‡": rounds if variant.is_short else "", "†": diverged if variant.diverged else ""}
    return {sign: text for sign, text in said.items() if text}


def _range(numbers: Iterable[int]) -> str:
    known = sorted(set(numbers))
    return NOTHING if not known else str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


def _notes(measured: list[Measured]) -> list[str]:
    notes = []
    for each in measured:
        notes += [f"{sign} {each.cell.name}: {text}." for sign, text in _flags(each).items()]
        if unlearned := sum(run.at_chance for run in each.variant.runs):
            notes.append(f"{each.cell.name}: {unlearned} of {len(each.variant.runs)} runs ended at chance.")
        if each.others:
            others = [
                f"{plural(len(other.runs), 'run')}, rounds {other.rounds}, "
                f"{other.said() or 'otherwise as in the protocol'}"
                for other in each.others
            ]
            notes.append(f"{each.cell.name}: runs of other protocols exist and are left out: {' | '.join(others)}.")
        if each.lacking:
            notes.append(f"{each.cell.name}: {each.lacking}.")
        if each.printed.note and any(word in each.printed.note for word in ("swapped", "inferred")):
            notes.append(f"{each.cell.name}: {each.printed.note}.")
    return _merged(notes)


def _merged(notes: list[str]) -> list[str]:
    """Notes with the same text for several cells, merged into one."""
    cells: dict[str, list[str]] = {}
    for note in notes:
        name, _, text = note.partition(": ")
        cells.setdefault(text, []).append(name)
    return [f"{', '.join(names) if len(names) < 7 else f'{len(names)} cells'}: {text}" for text, names in cells.items()]


def _records(table: Table, measured: list[Measured]) -> pd.DataFrame:
    counted = table.program is None  # a study has no rounds
    return pd.DataFrame([
        {
            "table": table.name, "row": each.cell.row, "column": each.cell.column, "measure": each.cell.measure.words,
            "measured": each.mean, "std": each.std, "seeds": len(each.values), "seeds_asked": len(table.seeds),
            "published": each.printed.number, "published_std": each.printed.std, "difference": each.difference,
            "rounds": each.variant.rounds if each.values and counted else None,
            "rounds_published": each.rounds_of_protocol if counted else None,
            "data": each.variant.data if each.values else None,
            "deviation": "; ".join(in_words(*part) for part in each.variant.deviation),
            "lacking": each.lacking,
            "runs": " ".join(run.fingerprint for run in each.variant.runs),
        }
        for each in measured
    ])  # fmt: skip
