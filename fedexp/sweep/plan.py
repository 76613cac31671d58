"""The plan of a sweep for a dry run: its runs, each once, the state of each, and how long it takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedexp.config.explain import in_short
from fedexp.errors import ConfigError
from fedexp.record.folder import Folders, RunFolder
from fedexp.record.status import Status
from fedexp.sweep.jobs import Job, Sweep, by_run

_UNITS = {"h": 3600, "min": 60, "s": 1}


@dataclass(frozen=True)
class Planned:
    """A run of a sweep. cells: names of all that ask for it (a cell and a seed, or the swept values).

    done: whether it has finished. state: as text.
    rounds, seconds: those that it has had so far. left: the seconds until its end, if it took as long for each round
    as the rounds of this kind have taken here; None if there were none.
    """

    job: Job
    cells: list[str]
    done: bool
    state: str
    rounds: int = 0
    seconds: float = 0.0
    left: float | None = None


def planned(sweep: Sweep) -> list[Planned]:
    """The runs, in order; cells that share a run are listed with it."""
    folders = Folders()
    runs = [_as_it_stands(job, [each.name for each in cells], folders) for job, cells in by_run(sweep.jobs)]
    rounds, seconds = ({run.job.kind: 0.0 for run in runs} for _ in range(2))
    for run in runs:
        rounds[run.job.kind] += run.rounds
        seconds[run.job.kind] += run.seconds

    def left(run: Planned) -> float | None:
        kind = run.job.kind
        if run.done or run.job.refused or not rounds[kind]:
            return None
        return max(0, run.job.plain["rounds"] - run.rounds) * seconds[kind] / rounds[kind]

    return [replace(run, left=left(run)) for run in runs]


def _as_it_stands(job: Job, cells: list[str], folders: Folders) -> Planned:
    if job.refused:
        return Planned(job, cells, False, f"refused: {in_short(job.refused)}")
    folder = RunFolder(job.plain, job.fingerprint, folders)
    result = folder.result() or {}
    rounds, seconds = int(result.get("rounds") or 0), float(result.get("seconds") or 0)
    try:
        found = folder.finished(job.plain["rounds"])
    except ConfigError as error:
        return Planned(job, cells, False, str(error), rounds, seconds)
    if found is not None:
        took = float(found.get("seconds") or 0)  # of a run that went further, only what was asked for
        return Planned(job, cells, True, str(found["status"]), int(found["rounds"]), took)
    if result:
        return Planned(job, cells, False, f"{result['status']} after round {rounds}", rounds, seconds)
    return Planned(job, cells, False, str(Status.STARTED) if folder.path.is_dir() else "to do")


def show(sweep: Sweep, runs: Sequence[Planned], console: Console) -> None:
    """Print the runs, and how long those that have not finished are likely to take, one after another."""
    name = sweep.table.name if sweep.table else "sweep"
    console.print(f"[bold]{escape(name + (f' ({sweep.scale})' if sweep.scale else ''))}[/bold]")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("rounds", no_wrap=True, justify="right")
    table.add_column("time", no_wrap=True, justify="right")
    table.add_column("state", overflow="fold")
    for run in runs:
        more = f" and {len(run.cells) - 1} more" if len(run.cells) > 1 else ""
        rounds = str(run.job.plain["rounds"]) if run.job.plain else ""
        table.add_row(*map(escape, (run.cells[0] + more, rounds, _time(run), run.state)))
    console.print(table)
    done = sum(run.done for run in runs)
    bad = sum(run.job.refused is not None for run in runs)
    said = [f"runs: {len(runs)} (asked for: {len(sweep.jobs)})", f"done: {done}", f"to do: {len(runs) - done - bad}"]
    said += [f"refused: {bad}"] if bad else []
    console.print(", ".join(said), markup=False)
    known = [run.left for run in runs if run.left is not None]
    unknown = len(runs) - done - bad - len(known)
    if known:
        text = f"about {_in_words(sum(known))} for {len(known)} of them, judged by the rounds of runs of the same kind"
        console.print(text, markup=False)
    if unknown:
        others = "the others" if known else "those to do"
        console.print(f"fedexp bench with the same words estimates the time of {others}", markup=False)


def _time(run: Planned) -> str:
    if run.left is not None:
        return f"about {_in_words(run.left)}"
    return _in_words(run.seconds) if run.done and run.seconds else ""


def _in_words(seconds: float) -> str:
    return next(f"{seconds / size:,.1f} {unit}" for unit, size in _UNITS.items() if seconds >= size or unit == "s")
