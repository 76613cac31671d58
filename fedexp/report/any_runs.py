"""Comparing any runs: they are named by the keys in which they differ, and sorted by accuracy."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from statistics import fmean

import pandas as pd

from fedexp.errors import ConfigError
from fedexp.report import curves, maps
from fedexp.report.groups import Group, by_key, draws, grouped
from fedexp.report.page import Page, Picture, plural
from fedexp.report.results import WHICH, crossed, sheets, which
from fedexp.report.runs import Recorded, distinct

_CROSSED = {"final_accuracy": "Final accuracy", "client_accuracy_mean": "Mean accuracy of clients"}
_MOST_CURVES = 14  # lines in a picture
_MOST_PICTURES = 6
_LONGEST = 200  # characters of names in a sentence
_LONGEST_NAME = 150  # bytes of a file's name


def compare_runs(
    runs: Sequence[Recorded], name: str = "runs", targets: Sequence[float] | None = None, baseline: str | None = None
) -> Page:
    """Runs of one protocol that differ only in their draw (seed) share a line, named by the other keys that differ.

    targets: accuracies (fractions) for which the rounds, bytes and seconds needed are reported. baseline: an option's
    name, or KEY=VALUE, with which all others are compared. None: chosen to suit the runs. Raises ConfigError for an
    unknown baseline.
    """
    every = len(runs)
    runs = _each_once(runs)
    groups = _ranked(grouped(runs))
    page = Page(name, f"{plural(len(runs), 'run')}, {plural(len(groups), 'setting')}")
    keys = groups[0].settings
    together = " and ".join(draws(runs)) or "their seed"
    page.lead = [
        f"Runs that differ only in {together} share a line: mean ± standard deviation of those that are complete. "
        + (f"They differ in: {', '.join(keys)}." if keys else "They differ in nothing else."),
        *(f"Names leave out {key} where it is {value}." for key, value in groups[0].usual.items()),
        *_left_out(groups),
        *_twice(every - len(runs)),
    ]
    page.sheets, found = sheets(groups, targets, baseline)
    grids = (crossed(groups, found, name, title) for name, title in _CROSSED.items())
    page.sheets[1:1] = filter(None, grids)
    page.notes = [f"{run.path.name}: {run.why}." for run in runs if not run.complete]
    why = "its metrics.csv is damaged, so that it is not known when it reached a target"
    page.notes += [f"{run.path.name}: {why}." for run in runs if run.complete and not run.curve and not run.is_study]
    for run in runs:
        if run.diverged:
            page.notes.append(f"{run.path.name}: diverged, and ended with round {run.result.get('rounds')}.")
        elif run.at_chance:
            page.notes.append(f"{run.path.name}: its global model ended at the accuracy of chance.")
    drawn, others = _pictured(groups)
    page.notes += list(_not_pictured(others))
    pictures = [*_curves(groups, drawn), maps.over_two_keys(groups, found), *_partitions(drawn)]
    page.pictures = _under_different_names([each for each in pictures if each is not None])
    page.records = _records(groups, found)
    return page


def _left_out(groups: Sequence[Group]) -> Iterator[str]:
    """The values of the keys that the groups' names leave out, in one sentence for keys that vary alike; the most
    frequent values last."""

    def pattern(key: str) -> tuple[int, ...]:
        first: dict[str, int] = {}
        return tuple(first.setdefault(group.more[key], len(first)) for group in groups)

    for keys in by_key(groups[0].more, pattern).values():
        texts = [" / ".join(group.more[key] for key in keys) for group in groups]
        values = by_key(range(len(groups)), texts.__getitem__)
        *few, (most, _) = sorted(values.items(), key=lambda each: len(each[1]))
        told = "; ".join(f"{text} for {_names([groups[number] for number in own])}" for text, own in few)
        yield f"{' / '.join(keys)}: {told}; otherwise {most}."


def _each_once(runs: Sequence[Recorded]) -> list[Recorded]:
    """Complete runs first; of those that differ only in what was measured, the one for which the most was measured."""

    def order(run: Recorded) -> tuple[bool, bool, int, list[str]]:
        clients = run.settings.get("evaluate.clients", "none")
        return not run.complete, clients == "none", -len(run.watched), run.watched

    kept = distinct(sorted(runs, key=order))
    paths = {run.path for run in kept}
    return sorted((run for run in runs if run.path in paths), key=lambda run: not run.complete)


def _twice(count: int) -> Iterator[str]:
    if count:
        why = "because others here have the same settings and seed, or differ from them only in what was measured"
        yield f"Left out, {why}: {plural(count, 'run')}."


def _names(groups: list[Group]) -> str:
    text = " and ".join(each.label for each in groups)
    return text if len(text) <= _LONGEST else f"{len(groups)} of them"


def by_data_set(
    runs: Sequence[Recorded], targets: Sequence[float] | None = None, baseline: str | None = None
) -> list[Page]:
    """A page of `compare_runs` for each data set: no table mixes accuracies on different data sets.
    Folders of `fedexp study` alone are left out. Raises ConfigError for a baseline that no data set's runs have."""
    parts = by_key((run for run in runs if not run.is_study), lambda run: run.data)
    if len(parts) == 1:
        return [compare_runs(own, targets=targets, baseline=baseline) for own in parts.values()]
    pages, refused = [], []
    for data, own in sorted(parts.items()):
        name = _stem("runs", data)
        try:
            page = compare_runs(own, name, targets, baseline)
        except ConfigError as error:
            refused.append(error)
            page = compare_runs(own, name, targets)
        page.title = f"{data}: {page.title}"
        pages.append(page)
    if refused and len(refused) == len(pages):
        raise refused[0]
    return pages


def _ranked(groups: list[Group]) -> list[Group]:
    """Sorted by problem; then complete groups first, and the most accurate first."""

    def rank(group: Group) -> tuple[str, bool, float]:
        known = [each for run in group.counted if (each := run.result.get("final_accuracy")) is not None]
        return group.problem, not group.done, -fmean(known) if known else 0.0

    return sorted(groups, key=rank)


def _pictured(groups: Sequence[Group]) -> tuple[dict[str, list[Group]], list[str]]:
    """The problems for which pictures are made, with their groups: those with the most groups, in the order of the
    page; and the other problems."""
    problems = by_key(groups, lambda group: group.problem)
    most = sorted(problems, key=lambda problem: -len(problems[problem]))[:_MOST_PICTURES]
    drawn = {problem: peers for problem, peers in problems.items() if problem in most}
    return drawn, [problem for problem in problems if problem not in drawn]


def _not_pictured(problems: Sequence[str]) -> Iterator[str]:
    if problems:
        names = "; ".join(problems)
        names = names if len(names) <= _LONGEST else f"the {len(problems)} others"
        yield (
            f"There are pictures of the {_MOST_PICTURES} data sets and partitions with the most settings, and none of "
            f"{names}."
        )


def _curves(groups: Sequence[Group], problems: dict[str, list[Group]]) -> Iterator[Picture]:
    """One picture per problem; groups of the same name look alike in all of them."""
    looks = {name: number for number, name in enumerate(sorted({group.short for group in groups}))}
    for problem, peers in problems.items():
        known = {group.short: own for group in peers if (own := [run for run in group.done if run.curve])}
        if not known:
            continue
        shown = dict(list(known.items())[:_MOST_CURVES])
        of = f" of the best {len(shown)} of {len(known)}" if len(shown) < len(known) else ""
        title = f"{problem}: test accuracy{of}".removeprefix(": ")
        yield curves.picture(_stem("accuracy", problem), title, shown, {}, looks)


def _partitions(problems: dict[str, list[Group]]) -> Iterator[Picture | None]:
    """One picture of each problem's partition."""
    for problem, peers in problems.items():
        run = peers[0].runs[0]
        own = run.settings.get("partition.seed")
        seed = run.seed if own is None else own
        title = f"{run.name('partition')} of {run.data}, seed {seed}: examples of each class that each client holds"
        yield maps.partition(_stem("partition", problem), title, run)


def _under_different_names(pictures: list[Picture]) -> list[Picture]:
    """Pictures whose files would have the same name, as of partitions named a/b and a_b, are numbered."""
    seen: Counter[str] = Counter()
    named = []
    for each in pictures:
        seen[each.name] += 1
        named.append(each if seen[each.name] == 1 else replace(each, name=f"{each.name}-{seen[each.name]}"))
    return named


def _stem(kind: str, of: str) -> str:
    """The name of a file, which a disk takes: a long one is cut, and told apart by a hash."""
    name = re.sub(r"[^\w.=+-]+", "_", f"{kind}_{of}").rstrip("_")
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    return f"{name.encode()[:_LONGEST_NAME].decode(errors='ignore')}_{blake2b(of.encode(), digest_size=3).hexdigest()}"


def _records(groups: Sequence[Group], found: pd.DataFrame) -> pd.DataFrame:
    """One row per run, incomplete runs included."""
    written = pd.DataFrame([
        {WHICH: which(run), "run": run.path.name, "setting": group.label, **group.settings, "seed": run.seed,
         **{key: value for key, value in run.result.items() if not isinstance(value, dict | list)}}
        for group in groups for run in group.runs
    ])  # fmt: skip
    reached = found[[WHICH, *(name for name in found if "_to_" in name)]]
    return written.merge(reached, on=WHICH, how="left").drop(columns=WHICH)
