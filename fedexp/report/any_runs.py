"""Any runs beside each other: the keys in which they differ become the columns."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from fedexp.report.curves import accuracy_curves
from fedexp.report.page import NOTHING, Entry, Page, Picture, Sheet
from fedexp.report.runs import Recorded, differing, distinct
from fedexp.settings import DRAWS

_MOST_CURVES = 20


def compare_runs(runs: Sequence[Recorded], name: str = "runs") -> Page:
    """Draws of one protocol (runs that differ in their seed alone) share a line; what else differs is shown."""
    runs = distinct(sorted(runs, key=lambda run: not run.complete))
    named = _named(runs)
    varying = differing(named.values())
    keys = [key for key in varying if key not in DRAWS]
    draws = [key for key in DRAWS if key in varying]
    lines: dict[str, list[Recorded]] = {}
    for run in runs:
        lines.setdefault(repr([named[id(run)].get(key) for key in keys]), []).append(run)
    groups = sorted(lines.values(), key=_rank)
    page = Page(name, f"{len(runs)} runs, {len(groups)} settings")
    page.lead = [
        f"Runs that differ in {' and '.join(draws) or 'their seed'} alone share a line: mean ± standard deviation of "
        "those that are complete. "
        + (f"They differ in: {', '.join(keys)}." if keys else "They differ in nothing else.")
    ]
    header = ["", *keys, "final accuracy, %", "best, %", "rounds", "MB sent", "seeds", "status"]
    body = [[Entry(str(number + 1)), *_line(group, keys, named)] for number, group in enumerate(groups)]
    page.sheets = [Sheet("Runs, the most accurate first", header, body)]
    page.notes = [f"{run.path.name}: {run.why}." for run in runs if not run.complete]
    page.notes += [f"{run.path.name}: ended at chance, it has not learned." for run in runs if run.at_chance]
    curves = {
        _label(number, named[id(group[0])], keys): complete
        for number, group in enumerate(groups)
        if (complete := [run for run in group if not run.metrics.empty])
    }
    if curves:
        shown = dict(list(curves.items())[:_MOST_CURVES])
        page.pictures = [Picture(f"accuracy of the first {len(shown)}", "svg", accuracy_curves(shown, {}), "accuracy")]
    page.records = pd.DataFrame([
        {"run": run.path.name, **{key: named[id(run)].get(key) for key in [*keys, *draws]}, "seed": run.seed,
         **{key: value for key, value in run.result.items() if not isinstance(value, dict | list)}}
        for run in runs
    ])  # fmt: skip
    return page


def _named(runs: Sequence[Recorded]) -> dict[int, dict[str, Any]]:
    """Each run's settings, its groups by name; by constructor too where one name stands for several."""
    groups = ("partition", "model", "algorithm")
    named = {
        id(run): {"dataset": run.data, **{group: run.name(group) for group in groups}, **run.settings} for run in runs
    }
    for key in dict.fromkeys(key for values in named.values() for key in values if key.endswith("_target_")):
        pairs = {(values[key.split(".")[0]], values.get(key)) for values in named.values()}
        if len({name for name, _ in pairs}) == len(pairs):
            for values in named.values():
                values.pop(key, None)
    return named


def _line(group: list[Recorded], keys: list[str], named: dict[int, dict[str, Any]]) -> list[Entry]:
    statuses = ", ".join(dict.fromkeys(run.status for run in group))
    group = _counted(group)
    return [
        *(Entry(_text(named[id(group[0])].get(key))) for key in keys),
        Entry(_spread(group, "final_accuracy")), Entry(_spread(group, "best_accuracy")),
        Entry(", ".join(f"{number:.0f}" for number in sorted(set(_values(group, "rounds")))) or NOTHING),
        Entry(_megabytes(group)),
        Entry(str(len(group))), Entry(statuses),
    ]  # fmt: skip


def _rank(group: list[Recorded]) -> tuple[bool, float]:
    """Complete ones first, the most accurate first."""
    accuracies = _values(_counted(group), "final_accuracy")
    return not _done(group), -fmean(accuracies) if accuracies else 0.0


def _done(group: list[Recorded]) -> list[Recorded]:
    return [run for run in group if run.complete]


def _counted(group: list[Recorded]) -> list[Recorded]:
    """The complete runs; where there are none, how far the others have come."""
    return _done(group) or group


def _values(group: list[Recorded], key: str) -> list[float]:
    return [run.result[key] for run in group if run.result.get(key) is not None]


def _megabytes(group: list[Recorded]) -> str:
    up, down = _values(group, "bytes_up"), _values(group, "bytes_down")
    return f"{(fmean(up) + fmean(down)) / 1e6:,.1f}" if up and down else NOTHING


def _spread(group: list[Recorded], key: str) -> str:
    values = [100 * value for value in _values(group, key)]
    if not values:
        return NOTHING
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _label(number: int, settings: dict[str, Any], keys: list[str]) -> str:
    said = " ".join(_text(settings.get(key)) for key in keys)
    return f"{number + 1} {said[:40]}".strip()


def _text(value: Any) -> str:
    return NOTHING if value is None else str(value)
