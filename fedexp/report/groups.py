"""Grouping runs: draws of one protocol form a group, which is named by the fewest keys that tell it from the others."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fedexp.config.constructors import PARTS
from fedexp.config.fingerprint import DRAWS
from fedexp.report.runs import WATCHING, Recorded, differing, said, shown

_NAMED = ("dataset", "partition", "model", "algorithm", *PARTS)  # groups of the config, whose options have names
PROBLEM = ("dataset", "partition", "clients")  # what is to be learned: runs are ranked where they agree in it
_NEARLY_ALL = 0.75  # the share of groups from which a value is the usual one
_OWN_SEED = "partition.seed"  # null, which names leave out: the partition is drawn by the run's seed, as usual
_PREPARED = "dataset.transform."  # how examples are prepared, which changes nothing in what is to be learned

Item = TypeVar("Item")
Key = TypeVar("Key")


@dataclass(frozen=True)
class Group:
    """Runs that differ in their draw alone. keys: the values that tell the group from the others, as text.

    problem: equal for groups that are ranked against each other. short: the group's name among these. more: what else
    differs among the groups, but follows from `keys`, such as the server optimizer that only one algorithm has. usual:
    the values of nearly all groups, which their names leave out.
    """

    label: str
    keys: dict[str, str]
    problem: str
    runs: list[Recorded]
    short: str
    more: dict[str, str] = field(default_factory=dict)
    usual: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """`keys` and `more`: the same keys for all groups."""
        return {**self.keys, **self.more}

    @property
    def done(self) -> list[Recorded]:
        return [run for run in self.runs if run.complete]

    @property
    def counted(self) -> list[Recorded]:
        """The complete runs; if there are none, the incomplete ones."""
        return self.done or self.runs


def by_key(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items that have a key in common, by that key, in order of appearance."""
    found: dict[Key, list[Item]] = {}
    for each in items:
        found.setdefault(key(each), []).append(each)
    return found


def grouped(runs: Sequence[Recorded]) -> list[Group]:
    """The groups of these runs, which are all different, in order of appearance."""
    texts = _columns(runs)
    keys = [key for key in texts[0] if len({each[key] for each in texts}) > 1]
    together = by_key(range(len(runs)), lambda number: tuple(texts[number][key] for key in keys))
    every = [dict(zip(keys, values)) for values in together]
    telling = _telling(every, keys)
    usual = _usual(every, telling)
    return [_group(held, telling, usual, [runs[n] for n in numbers]) for held, numbers in zip(every, together.values())]


def _unshown(runs: Sequence[Recorded]) -> tuple[str, ...]:
    """The keys of what is measured that tell no runs apart: what no table shows, and also which clients were evaluated
    on what, where all runs that evaluated any did so alike."""
    ways = {
        repr((run.settings.get("evaluate.clients"), run.settings.get("evaluate.on")))
        for run in runs if run.settings.get("evaluate.clients", "none") != "none"
    }  # fmt: skip
    return tuple(key for key in WATCHING if len(ways) < 2 or not key.startswith("evaluate."))


def _telling(groups: Sequence[dict[str, str]], keys: list[str]) -> list[str]:
    """The keys without those that follow from others: the last ones are left out first, what is to be learned and the
    algorithm never."""
    for key in reversed([key for key in keys if key not in (*PROBLEM, "algorithm")]):
        fewer = [each for each in keys if each != key]
        if len({tuple(group[each] for each in fewer) for group in groups}) == len(groups):
            keys = fewer
    return keys


def _usual(groups: Sequence[dict[str, str]], keys: list[str]) -> dict[str, str]:
    """The values that nearly all groups have, by key: names leave them out, but never the options of groups."""
    found = {}
    for key in keys:
        text, count = Counter(group[key] for group in groups).most_common(1)[0]
        if key not in _NAMED and count >= _NEARLY_ALL * len(groups):
            found[key] = text
    return found


def draw(run: Recorded) -> str:
    """A run's draw of its protocol, as text."""
    return repr([run.settings.get(key) for key in DRAWS])


def draws(runs: Sequence[Recorded]) -> list[str]:
    """The keys of draws in which these runs differ."""
    return [key for key in DRAWS if len({repr(run.settings.get(key)) for run in runs}) > 1]


def _group(held: dict[str, str], telling: list[str], usual: dict[str, str], runs: list[Recorded]) -> Group:
    keys = {key: text for key, text in held.items() if key in telling}
    more = {key: text for key, text in held.items() if key not in telling}
    last = {key: key.rpartition(".")[2] for key in keys}
    short = {key: name if [*last.values()].count(name) == 1 else key for key, name in last.items()}
    told = {key: text for key, text in keys.items() if usual.get(key) != text}
    words = {key: text if key in _NAMED else f"{short[key]}={text}" for key, text in told.items()}
    name = runs[0].name("algorithm")
    problem = " ".join(word for key, word in words.items() if key in PROBLEM)
    among = ", ".join(word for key, word in words.items() if key not in PROBLEM)
    return Group(", ".join(words.values()) or name, keys, problem, runs, among or name, more, usual)


def _columns(runs: Sequence[Recorded]) -> list[dict[str, str]]:
    """Each run's settings as text by key: for a config group, the option's name and the keys that vary among the runs
    with that option; then every other key that varies; and last how examples are prepared, where that varies among the
    runs on one data set."""
    found: list[dict[str, str]] = [{} for _ in runs]
    prepared: list[str] = []
    for group in _NAMED:
        names = [run.data if group == "dataset" else run.name(group) for run in runs]
        for name, numbers in by_key(range(len(runs)), names.__getitem__).items():
            own = [runs[number].settings.within(group) for number in numbers]
            varying = [key for key in differing(own) if key not in DRAWS]
            prepared += [key for key in varying if key.startswith(_PREPARED)]
            named = [key for key in varying if key not in prepared]
            for number, settings in zip(numbers, own):
                more = [
                    said(key if key == _OWN_SEED else key.removeprefix(f"{group}."), settings[key])
                    for key in named if key in settings and (key, settings[key]) != (_OWN_SEED, None)
                ]  # fmt: skip
                found[number][group] = " ".join([name, *more])
    apart = (*(f"{group}." for group in _NAMED), *DRAWS, *_unshown(runs))
    others = [run.settings.without(*apart) for run in runs]
    for key in [*differing(others), *prepared]:
        for each, run in zip(found, runs):
            each[key] = shown(run.settings[key]) if key in run.settings else "none"
    return found
