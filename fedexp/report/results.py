"""Results of runs by group: accuracy, cost, the way to a target accuracy, and differences with their interval."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd

from fedexp.errors import require
from fedexp.report.agreement import marks
from fedexp.report.differences import differences, find_baseline
from fedexp.report.groups import Group, by_key, draw
from fedexp.report.page import NOTHING, Entry, Sheet
from fedexp.report.runs import Recorded

_MARKS = "The best in bold, the second best underlined or in italics (no ranking where one of them has a single seed)"
WHICH = "which"  # a column of `table`
BASELINE = "fedavg"  # if it is among the options compared and no other is asked for


def numbers(run: Recorded, targets: Sequence[float]) -> dict[str, Any]:
    """A run's numbers: accuracies in percent, rounds, megabytes, and rounds, megabytes and seconds to each target; NaN
    for values that are unknown or not reached."""
    curve = run.curve
    names = ("final_accuracy", "best_accuracy", "rounds", "bytes_up", "bytes_down")
    known = {name: math.nan if run.result.get(name) is None else float(run.result[name]) for name in names}
    found = {name: 100 * known[name] for name in ("final_accuracy", "best_accuracy")}
    found |= {"rounds": known["rounds"], "megabytes": (known["bytes_up"] + known["bytes_down"]) / 1e6}
    found |= {name: 100 * float(values[-1]) for name, values in curve.items() if name.startswith("client_")}
    clock = clock_of(run)
    for target in targets:
        reached = list(np.flatnonzero(curve["test_accuracy"] >= target)[:1]) if "test_accuracy" in curve else []
        for name, column, unit in (("rounds", "round", 1), ("megabytes", "bytes_total", 1e6), (clock, clock, 1)):
            there = reached and column in curve
            found[f"{name}_to_{target:g}"] = float(curve[column][reached[0]]) / unit if there else math.nan
    return found


def clock_of(run: Recorded) -> str:
    """The column of time: that of the simulated network and devices if there is one, else that of the machine that
    made the run."""
    return "simulated_seconds" if "simulated_seconds" in run.curve else "seconds"


def which(run: Recorded) -> str:
    """Tells a run from all others: folders of one name may lie in several places, and hold other numbers of rounds."""
    return f"{run.path} {run.rounds}"


def table(groups: Sequence[Group], targets: Sequence[float]) -> pd.DataFrame:
    """One row for each run that counts: its group's number, its draw, which run it is, and `numbers`."""
    return pd.DataFrame([
        {"group": number, "draw": draw(run), WHICH: which(run), **numbers(run, targets)}
        for number, group in enumerate(groups) for run in group.counted
    ])  # fmt: skip


def own_targets(groups: Sequence[Group], baseline: str | None) -> list[float]:
    """The targets given to the runs themselves; without any, one target: the baseline's best accuracy, or without a
    baseline that of the group in the middle, in the problem where it is lowest, rounded down to five points."""
    given = {float(target) for group in groups for run in group.runs for target in run.config.get("targets") or []}
    if given:
        return sorted(given)
    chosen = None if baseline is None else find_baseline(groups, baseline)
    levels = []
    for peers in by_key(groups, lambda group: group.problem).values():
        best = [(fmean(values), group) for group in peers if (values := _best(group))]
        told = [value for value, group in best if chosen in group.keys.items()]
        ordered = sorted(value for value, _ in best)
        levels += [max(told)] if told else ordered[len(ordered) // 2 :][:1]
    level = math.floor(min(levels, default=0.0) * 20 + 1e-9) / 20
    return [level] if level > 0 else []


def accuracy(groups: Sequence[Group], found: pd.DataFrame) -> Sheet:
    """Final and best accuracy, with the best two of each problem marked; the runs' cost; and last the varying keys."""
    final, best = _spreads(groups, found, "final_accuracy"), _spreads(groups, found, "best_accuracy")
    signs = [_marked(groups, found, "final_accuracy", final), _marked(groups, found, "best_accuracy", best)]
    keys = list(groups[0].settings)
    keys = keys if len(keys) > 1 else []  # a single key is already in the name
    rounds, megabytes = _values(groups, found, "rounds"), _values(groups, found, "megabytes")
    rows = []
    for number, group in enumerate(groups):
        rows.append([
            Entry(group.label), Entry(final[number], mark=signs[0].get(number, "")),
            Entry(best[number], mark=signs[1].get(number, "")),
            Entry(_range(rounds[number])), Entry(_mean(megabytes[number], 1)), Entry(_count(group)),
            *(Entry(group.settings[key]) for key in keys),
        ])  # fmt: skip
    header = ["", "final, %", "best, %", "rounds", "MB", "runs", *keys]
    several = " of each data set and partition" if len({group.problem for group in groups}) > 1 else ""
    return Sheet("Test accuracy", header, rows, f"MB: sent in both directions. {_MARKS}{several}.", len(keys))


def crossed(groups: Sequence[Group], found: pd.DataFrame, name: str, title: str) -> Sheet | None:
    """An accuracy, a column of `found`, as papers print it: settings crossed with data sets and partitions, the fewer
    of the two as columns, of complete runs. None where there is only one of either, or where most combinations have no
    value."""
    problems, names = (list(dict.fromkeys(each)) for each in zip(*((group.problem, group.short) for group in groups)))
    if min(len(problems), len(names)) < 2:
        return None
    shown = [text if group.done else NOTHING for text, group in zip(_spreads(groups, found, name), groups)]
    if 2 * sum(text != NOTHING for text in shown) < len(problems) * len(names):
        return None
    best = _marked(groups, found, name, shown)
    entries = {  # by both names, whichever of the two is the row
        frozenset((group.problem, group.short)): Entry(shown[number], mark=best.get(number, ""))
        for number, group in enumerate(groups)
    }
    rows, columns = (names, problems) if len(problems) <= len(names) else (problems, names)
    lines = [[Entry(row), *(entries.get(frozenset((row, each)), Entry(NOTHING)) for each in columns)] for row in rows]
    caption = f"Mean ± standard deviation, in percent. {_MARKS} of each data set and partition."
    return Sheet(f"{title} by data set and partition", ["", *columns], lines, caption)


def to_target(groups: Sequence[Group], found: pd.DataFrame, target: float) -> Sheet:
    """Rounds, megabytes and seconds until test accuracy first reaches `target`: means over the runs that reached it."""
    simulated = f"simulated_seconds_to_{target:g}" in found
    columns = ("rounds", "megabytes", "simulated_seconds" if simulated else "seconds")
    known = [_values(groups, found, f"{column}_to_{target:g}") for column in columns]
    rows = []
    for number, group in enumerate(groups):
        values = [_spread(each[number], 1) for each in known]
        reached = f"{len(known[0][number])} of {sum(bool(run.curve) for run in group.counted)}"
        rows.append([Entry(text) for text in (group.label, *values, reached)])
    seconds = "simulated s" if simulated else "seconds"
    caption = "Means over the runs that reached it, at the first evaluated round in which they did."
    if not simulated:
        caption += " Seconds are those of the machine on which each run was made."
    return Sheet(f"Until {100 * target:g} % is reached", ["", "rounds", "MB", seconds, "runs"], rows, caption)


def of_clients(groups: Sequence[Group], found: pd.DataFrame) -> Sheet:
    """Accuracy of the clients' models after the last round, where that was measured."""
    mean, worst = (_spreads(groups, found, f"client_accuracy_{name}") for name in ("mean", "worst10"))
    evaluated = [run.config["evaluate"] for group in groups for run in group.runs]
    on = ", ".join(dict.fromkeys(str(each.get("on")) for each in evaluated if each.get("clients") != "none"))
    rows = [[Entry(group.label), Entry(mean[n]), Entry(worst[n])] for n, group in enumerate(groups)]
    header = ["", "mean, %", "worst tenth, %"]
    counts = [len(values) for values in _values(groups, found, "client_accuracy_mean")]
    if any(0 < count < len(group.counted) for count, group in zip(counts, groups)):
        header.append("runs")
        rows = [[*row, Entry(f"{n} of {len(group.counted)}")] for row, n, group in zip(rows, counts, groups)]
    caption = f"Of the model that each client would use (evaluate.on: {on})."
    if any(each.get("clients") == "participants" for each in evaluated):
        caption += " Where evaluate.clients is participants, of the last evaluated round's clients alone."
    return Sheet("Accuracy of clients", header, rows, caption)


def sheets(
    groups: Sequence[Group], targets: Sequence[float] | None, baseline: str | None
) -> tuple[list[Sheet], pd.DataFrame]:
    """All of these sheets, and the numbers of each run. targets, baseline: None: chosen to suit the groups."""
    if baseline is None and any(BASELINE in group.keys.values() for group in groups):
        baseline = BASELINE
    targets = own_targets(groups, baseline) if targets is None else targets
    for target in targets:
        require(0 < target <= 1, "targets", target, "must be a fraction in (0, 1], such as 0.8")
    found = table(groups, targets)
    made = [accuracy(groups, found), *(to_target(groups, found, target) for target in targets)]
    if "client_accuracy_mean" in found:
        made.append(of_clients(groups, found))
    if baseline is not None and (against := differences(groups, found, baseline)):
        made.append(against)
    return made, found


def _marked(groups: Sequence[Group], found: pd.DataFrame, name: str, shown: list[str]) -> dict[int, str]:
    """Which groups are best and second best among those of the same problem."""
    means = found.groupby("group")[name].mean() if name in found else pd.Series(dtype=float)
    signs: dict[int, str] = {}
    done = [number for number, group in enumerate(groups) if group.done]
    for peers in by_key(done, lambda number: groups[number].problem).values():
        values = {number: float(means.get(number, math.nan)) for number in peers}
        signs |= marks(values, {number: shown[number].partition(" ")[0] for number in peers}, True)
    return signs


def _spreads(groups: Sequence[Group], found: pd.DataFrame, name: str) -> list[str]:
    """Mean ± standard deviation of each group."""
    return [_spread(values, 2) for values in _values(groups, found, name)]


def _values(groups: Sequence[Group], found: pd.DataFrame, name: str) -> list[list[float]]:
    """What is known of each group's runs, in one pass: to select a thousand groups one by one takes seconds."""
    values: list[list[float]] = [[] for _ in groups]
    for number, value in zip(found["group"], found[name]) if name in found else ():
        if not math.isnan(value):
            values[number].append(value)
    return values


def _spread(values: list[float], digits: int) -> str:
    return _mean(values, digits) + (f" ± {stdev(values):,.{digits}f}" if len(values) > 1 else "")


def _mean(values: list[float], digits: int) -> str:
    return f"{fmean(values):,.{digits}f}" if values else NOTHING


def _range(values: list[float]) -> str:
    known = sorted({int(value) for value in values})
    return f"{known[0]} to {known[-1]}" if len(known) > 2 else ", ".join(map(str, known)) or NOTHING


def _count(group: Group) -> str:
    """How many runs are complete, and of how many if not all are."""
    done, every = len(group.done), len(group.runs)
    return str(done) if done == every else f"{done} of {every}"


def _best(group: Group) -> list[float]:
    """The best accuracies of complete runs."""
    return [best for run in group.done if (best := run.result.get("best_accuracy")) is not None]
