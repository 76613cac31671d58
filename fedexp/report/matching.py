"""Which runs belong to which cell, and under which protocol they ran.

A run belongs to a cell if it has the cell's data set, partition and algorithm, the model and the values of all keys
that the table sets, but for the number of rounds, and the cell's values of the keys that distinguish it from other
cells with the same three. Other differences from the cell's own config are its deviation, which is reported: only
runs with the same deviation are averaged, each once, whatever else was measured.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedexp.config.fingerprint import data_used
from fedexp.record.status import Status
from fedexp.report.groups import by_key
from fedexp.report.runs import ABSENT, Recorded, Settings, differing, distinct, protocol, said, settings, shown, trained
from fedexp.sweep.jobs import Job

_NAMES = ("dataset", "partition", "algorithm")

Deviation = tuple[tuple[str, Any, Any], ...]  # (key, the run's value, the protocol's value)


@dataclass(frozen=True)
class Variant:
    """Complete runs of one cell: draws of one protocol, which differ in their seed.

    data: the data set they used; asked: whether the cell's jobs ask for one of these very runs.
    """

    runs: list[Recorded]
    deviation: Deviation
    data: str
    asked: bool = False

    @property
    def protocol(self) -> tuple[Any, ...]:
        """What runs of different algorithms must have in common to be compared: the data, and how they deviate in keys
        that do not belong to an algorithm or a model."""
        return (self.data, *(each for each in self.deviation if not each[0].startswith(("algorithm.", "model."))))

    @property
    def is_short(self) -> bool:
        """Whether the runs have another number of rounds than the protocol."""
        return any(key == "rounds" for key, *_ in self.deviation)

    @property
    def rounds(self) -> int:
        return max((run.result.get("rounds", 0) for run in self.runs), default=0)

    @property
    def diverged(self) -> int:
        return sum(run.diverged for run in self.runs)

    def said(self) -> str:
        """The deviation as text, without the number of rounds and the data set's source, which are shown elsewhere."""
        return ", ".join(
            in_words(*each) for each in self.deviation
            if each[0] != "rounds" and not (each[0].startswith("dataset.") and "(" in self.data)
        )  # fmt: skip


NOT_RUN = Variant([], (), "")


def in_words(key: str, run: Any, own: Any) -> str:
    """One key of a deviation as text, with both values."""
    if run == ABSENT:
        return f"no {key} (protocol: {shown(own)})"
    return f"{said(key, run)} ({'not in the protocol' if own == ABSENT else f'protocol: {shown(own)}'})"


class Matcher:
    """Finds runs for the jobs of a table. shorter: also those of fewer rounds than the jobs ask for. of_study: those
    with which `fedexp study` was done, and no others, however many rounds they have."""

    def __init__(
        self, runs: Iterable[Recorded], scale: str | None, shorter: bool = False, of_study: bool = False
    ) -> None:
        self.shorter, self.of_study = shorter, of_study
        runs = [run for run in runs if run.scale == scale and run.is_of(of_study)]
        self.by_fingerprint = by_key(runs, lambda run: run.fingerprint)
        self.by_names = by_key(runs, lambda run: tuple(run.name(group) for group in _NAMES))

    def find(self, jobs: Sequence[Job], peers: Sequence[Job]) -> tuple[list[Variant], list[Recorded]]:
        """The runs of a cell, given its jobs (one per seed): variants, those nearest to its protocol first, and of
        equally near ones those that deviate as most runs do; and incomplete runs. peers: one job of every cell of the
        table.

        Runs are read after as many rounds as the jobs ask for, or, with `shorter`, after the rounds that they have if
        these are fewer: such runs come last. Runs that the jobs ask for come first otherwise, whatever their deviation.
        """
        job, own = jobs[0], _protocol(jobs[0])
        telling = {*differing(_protocol(peer) for peer in peers if _names(peer) == _names(job))}
        telling |= (job.cell.overrides.keys() & own.keys()) - {"rounds"}  # what a whole table is about
        model = job.plain["model"].get("name") if "model" in job.cell.overrides else None
        asked = {each.fingerprint for each in jobs}
        exact = [
            self._after(run, each.plain["rounds"])
            for each in jobs for run in self.by_fingerprint.get(each.fingerprint, [])
        ]  # fmt: skip
        like = [
            run for run in (self._after(run, job.plain["rounds"]) for run in self.by_names.get(_names(job), []))
            if model in (None, run.name("model"))
            and all(_same(run.settings.get(key, ABSENT), own.get(key, ABSENT)) for key in telling)
        ]  # fmt: skip
        found = {(run.path, run.rounds): run for run in [*exact, *like]}.values()
        together = by_key(filter(self._counts, found), lambda run: repr(_deviation(run, own)))
        incomplete = [run for run in found if not self._counts(run) and run.fingerprint in asked]
        variants = [
            Variant(
                sorted(distinct(runs), key=lambda run: run.seed), _deviation(runs[0], own), _data(runs, job),
                any(run.fingerprint in asked for run in runs),
            )
            for runs in together.values()
        ]  # fmt: skip
        variants.sort(key=lambda variant: (
            variant.is_short, not variant.asked, len(variant.deviation), -self._sharing(variant.deviation),
            -len(variant.runs), -variant.rounds,
        ))  # fmt: skip
        return variants, incomplete

    def _sharing(self, deviation: Deviation) -> int:
        """How many runs, of this cell and of others, have the values of a deviation."""
        wanted = [(key, run) for key, run, _ in deviation if key != "rounds"]
        return sum(
            all(_same(run.settings.get(key, ABSENT), value) for key, value in wanted)
            for runs in self.by_names.values() for run in runs
        )  # fmt: skip

    def _counts(self, run: Recorded) -> bool:
        return self.of_study or run.complete

    def _after(self, run: Recorded, rounds: int) -> Recorded:
        if self.of_study:
            return run
        goes_on = self.shorter and run.status != Status.DIVERGED  # a diverged run has no more rounds than it has
        done = run.result.get("rounds", rounds) if goes_on else rounds
        return run.at(min(done, rounds))


def _protocol(job: Job) -> Settings:
    """The settings with which the cell's runs are compared: the paper's, scaled in a scaled sweep."""
    plain: Any = job.plain if job.protocol is None else job.protocol
    return protocol(trained(settings(plain, plain["rounds"])))


def _data(runs: list[Recorded], job: Job) -> str:
    """What runs used; a run shared with a cell of another data set goes by this one's."""
    own = job.plain["dataset"]
    return " / ".join(
        dict.fromkeys(run.data if run.name("dataset") == own.get("name") else data_used(own) for run in runs)
    )  # fmt: skip


def _names(job: Job) -> tuple[str, ...]:
    return tuple(str(job.plain[group].get("name")) for group in _NAMES)


def _deviation(run: Recorded, wanted: Settings) -> Deviation:
    own = protocol(run.trained)
    pairs = [(key, own.get(key, ABSENT), wanted.get(key, ABSENT)) for key in differing([wanted, own])]
    return tuple(each for each in pairs if not _same(*each[1:]))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other)
    return one == other
