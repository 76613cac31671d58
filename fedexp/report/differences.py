"""Differences in final accuracy from a baseline, paired by seed, with a confidence interval."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import pandas as pd
from scipy.special import stdtrit

from fedexp.errors import ConfigError, nearest, require
from fedexp.report.groups import PROBLEM, Group
from fedexp.report.page import NOTHING, Entry, Sheet

CONFIDENCE = 0.95


def differences(groups: Sequence[Group], found: pd.DataFrame, baseline: str) -> Sheet | None:
    """Final accuracy minus the baseline's in the same draws, of complete runs: the mean and its confidence interval
    (Student's t). None if nothing is compared with the baseline. Raises ConfigError for a baseline that no group
    has, or within which groups are compared."""
    column, value = find_baseline(groups, baseline)
    own: list[dict[str, float]] = [{} for _ in groups]
    for number, each, accuracy in zip(found["group"], found["draw"], found["final_accuracy"]):
        if groups[number].done:  # incomplete runs count elsewhere, where there are no others
            own[number][each] = accuracy
    places = {frozenset(group.keys.items()): number for number, group in reversed([*enumerate(groups)])}
    paired: list[list[Entry]] = []
    alone: list[list[Entry]] = []
    for number, group in enumerate(groups):
        if group.keys[column] == value:
            continue
        other = places.get(frozenset({**group.keys, column: value}.items()))
        against = {} if other is None or groups[other].problem != group.problem else own[other]
        pairs = [accuracy - against[each] for each, accuracy in own[number].items() if each in against]
        pairs = [pair for pair in pairs if not math.isnan(pair)]
        apart = _apart(group, groups[other]) if other is not None and pairs else ""
        row = [Entry(group.label), *_difference(pairs), Entry(str(len(pairs))), Entry(apart or NOTHING)]
        (paired if pairs else alone).append(row)
    if not paired and not alone:
        return None
    header = ["", "points", f"{CONFIDENCE:.0%} interval", "excludes 0", "pairs", "also differs in"]
    if all(row[-1].main == NOTHING for row in paired):
        header, paired, alone = header[:-1], [row[:-1] for row in paired], [row[:-1] for row in alone]
    caption = "Paired by seed; the interval is Student's, over pairs whose differences vary."
    if not paired:
        caption += f" No complete run of {baseline} can be paired with one of theirs."
    if paired and alone:
        caption += f" Left out because no complete run of {baseline} can be paired with one of theirs: {len(alone)}."
    return Sheet(f"Final accuracy minus that of {baseline}", header, paired or alone, caption)


def find_baseline(groups: Sequence[Group], said: str) -> tuple[str, str]:
    """The key and the value that `said` names: an option's name, or KEY=VALUE. Raises ConfigError as `differences`."""
    options = {(key, text) for group in groups for key, text in group.keys.items()}
    fits = [(key, text) for key, text in sorted(options) if said in (text, f"{key}={text}")]
    several = ", ".join(f"{key}={text}" for key, text in fits)
    require(len(fits) < 2, "baseline", said, f"is the value of several keys; give one of {several}")
    if fits:
        right = "cannot be the baseline: runs are compared within a data set, a partition and a number of clients"
        require(fits[0][0] not in PROBLEM, "baseline", said, right)
        return fits[0]
    options = {(key, text) for key, text in options if key not in PROBLEM}
    known = [f"{key}={text}" for key, text in options] + [text for _, text in options if not text[:1].isdigit()]
    raise ConfigError("baseline", said, f"is not among what is compared; {nearest(said, known)}")


def _apart(group: Group, other: Group) -> str:
    """What two groups differ in besides what is compared: none of their names says it."""
    theirs = other.more
    return "; ".join(f"{key}={text}, not {theirs[key]}" for key, text in group.more.items() if text != theirs[key])


def _difference(pairs: list[float]) -> list[Entry]:
    pairs = [round(each, 9) + 0.0 for each in pairs]  # a difference that is nothing but rounding has no sign
    if len(pairs) < 2:
        return [Entry(f"{pairs[0]:+.2f}" if pairs else NOTHING), Entry(NOTHING), Entry(NOTHING)]
    mean = fmean(pairs)
    if stdev(pairs) < 1e-9:  # accuracies are shares of the test examples: equal differences may be chance
        return [Entry(f"{mean:+.2f}"), Entry(NOTHING), Entry("no" if abs(mean) < 1e-9 else NOTHING)]
    reach = float(stdtrit(len(pairs) - 1, (1 + CONFIDENCE) / 2)) * stdev(pairs) / math.sqrt(len(pairs))
    excludes = abs(mean) > reach
    interval = f"{mean - reach:+.2f} to {mean + reach:+.2f}"
    return [Entry(f"{mean:+.2f}"), Entry(interval), Entry("yes" if excludes else "no", mark="best" if excludes else "")]
