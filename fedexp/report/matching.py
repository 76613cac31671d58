"""Which runs belong to which cell, and under which protocol they ran.

A run belongs to a cell if it has the cell's data set, partition and algorithm, and the cell's values of the keys
that distinguish it from other cells with the same three. Other differences from the cell's own config are its
deviation, which is reported: only runs with the same deviation are averaged, each once, whatever else was measured.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from fedexp.config.fingerprint import data_used
from fedexp.record.status import Status
from fedexp.report.runs import ABSENT, Recorded, Settings, differing, distinct, protocol, said, settings, shown, trained
from fedexp.sweep.jobs import Job

Deviation = tuple[tuple[str, Any, Any], ...]  # (key, the run's value, the protocol's value)


@dataclass(frozen=True)
class Variant:
    """Complete runs of one cell: draws of one protocol, which differ in their seed. data: the data set they used."""

    runs: list[Recorded]
    deviation: Deviation
    data: str

    @property
    def rounds(self) -> int:
        return max(run.result.get("rounds", 0) for run in self.runs)

    @property
    def diverged(self) -> int:
        return sum(run.status == Status.DIVERGED for run in self.runs)

    def said(self) -> str:
        """The deviation as text, without the number of rounds and the data set's source, which are shown elsewhere."""
        return ", ".join(
            in_words(*each) for each in self.deviation
            if each[0] != "rounds" and not (each[0].startswith("dataset.") and "(" in self.data)
        )  # fmt: skip


def in_words(key: str, run: Any, own: Any) -> str:
    """One key of a deviation as text, with both values."""
    if run == ABSENT:
        return f"no {key} (protocol: {shown(own)})"
    return f"{said(key, run)} ({'not in the protocol' if own == ABSENT else f'protocol: {shown(own)}'})"


@dataclass(frozen=True)
class Found:
    """All runs found for one cell: variants, those nearest to its protocol first; and incomplete runs."""

    variants: list[Variant]
    incomplete: list[Recorded]


class Matcher:
    """Finds runs for the jobs of a table. shorter: also those of fewer rounds than the jobs ask for."""

    def __init__(self, runs: Iterable[Recorded], scale: str | None, shorter: bool = False) -> None:
        self.shorter = shorter
        self.by_fingerprint: dict[str, list[Recorded]] = defaultdict(list)
        self.by_names: dict[tuple[str, ...], list[Recorded]] = defaultdict(list)
        for run in runs:
            if run.scale == scale:
                self.by_fingerprint[run.fingerprint].append(run)
                self.by_names[tuple(run.name(group) for group in ("dataset", "partition", "algorithm"))].append(run)

    def find(self, jobs: Sequence[Job], peers: Sequence[Job]) -> Found:
        """The runs of a cell, given its jobs (one per seed). peers: one job of every cell of the table.

        Runs are read after as many rounds as the jobs ask for, or, with `shorter`, after the rounds that they have if
        these are fewer. Runs that the jobs ask for come first, whatever their deviation.
        """
        job, own = jobs[0], _protocol(jobs[0])
        telling = differing(_protocol(peer) for peer in peers if _names(peer) == _names(job))
        asked = dict.fromkeys(each.fingerprint for each in jobs)
        exact = [
            self._after(run, each.plain["rounds"]) for each in jobs for run in self.by_fingerprint[each.fingerprint]
        ]
        like = [
            run for run in (self._after(run, job.plain["rounds"]) for run in self.by_names[_names(job)])
            if all(_same(run.settings.get(key, ABSENT), own.get(key, ABSENT)) for key in telling)
        ]  # fmt: skip
        together: dict[str, list[Recorded]] = defaultdict(list)
        deviations: dict[str, Deviation] = {}
        incomplete = []
        for run in {(run.path, run.rounds): run for run in [*exact, *like]}.values():
            deviation = _deviation(run, own)
            if run.complete:
                deviations[repr(deviation)] = deviation
                together[repr(deviation)].append(run)
            elif run.fingerprint in asked:
                incomplete.append(run)
        variants = [
            Variant(sorted(distinct(runs), key=lambda run: run.seed), deviations[key], _data(runs, job))
            for key, runs in together.items()
        ]  # fmt: skip
        variants.sort(key=lambda variant: (
            not any(run.fingerprint in asked for run in variant.runs),
            len(variant.deviation), -len(variant.runs), -variant.rounds,
        ))  # fmt: skip
        return Found(variants, incomplete)

    def _after(self, run: Recorded, rounds: int) -> Recorded:
        done = run.result.get("rounds", rounds) if self.shorter else rounds
        return run.at(min(done, rounds))


def _protocol(job: Job) -> Settings:
    """The settings that the cell's runs are held against: the paper's; of a scaled sweep the scaled ones."""
    own = job.plain["scale"] or job.protocol is None
    plain: Any = job.plain if own else OmegaConf.to_container(job.protocol, resolve=True)
    return protocol(trained(settings(plain, plain["rounds"])))


def _data(runs: list[Recorded], job: Job) -> str:
    """What runs used; a run shared with a cell of another data set goes by this one's."""
    own = job.plain["dataset"]
    return " / ".join(
        dict.fromkeys(run.data if run.name("dataset") == own.get("name") else data_used(own) for run in runs)
    )  # fmt: skip


def _names(job: Job) -> tuple[str, ...]:
    return tuple(str(job.plain[group].get("name")) for group in ("dataset", "partition", "algorithm"))


def _deviation(run: Recorded, wanted: Settings) -> Deviation:
    own = protocol(run.trained)
    given = {**wanted.given, **own.given}
    keys = [key for key in dict.fromkeys([*wanted, *own]) if key in given]
    pairs = [(key, own.get(key, ABSENT), wanted.get(key, ABSENT)) for key in keys]
    return tuple(each for each in pairs if not _same(*each[1:]))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other)
    return one == other


def protocol_rounds(job: Job) -> int | None:
    """The number of rounds in the paper's own protocol; None if it cannot be composed."""
    return None if job.protocol is None else job.protocol.rounds
