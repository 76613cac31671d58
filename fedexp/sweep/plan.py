"""The plan of a sweep for a dry run: its runs, each once, and the state of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedexp.errors import ConfigError
from fedexp.record.folder import Folders, RunFolder
from fedexp.record.status import Status
from fedexp.sweep.jobs import Job, Sweep, by_run


@dataclass(frozen=True)
class Planned:
    """A run of a sweep. cells: names of the cells that ask for it. done: whether it has finished. state: as text."""

    job: Job
    cells: list[str]
    done: bool
    state: str


def planned(sweep: Sweep) -> list[Planned]:
    """The runs, in order; cells that share a run are listed with it."""
    folders = Folders()
    return [Planned(job, [each.name for each in cells], *_state(job, folders)) for job, cells in by_run(sweep.jobs)]


def _state(job: Job, folders: Folders) -> tuple[bool, str]:
    if job.plain is None:
        return False, f"cannot be composed: {job.error.right}"
    folder = RunFolder(job.plain, job.fingerprint, folders)
    try:
        found = folder.finished(job.plain["rounds"])
    except ConfigError as error:
        return False, str(error)
    if found is not None:
        return True, str(found["status"])
    result = folder.result()
    if result is not None:
        return False, f"{result['status']} after round {result.get('rounds', 0)}"
    return False, str(Status.STARTED) if folder.path.is_dir() else "to do"


def show(sweep: Sweep, runs: Sequence[Planned], console: Console) -> None:
    """Print the runs."""
    name = sweep.table.name if sweep.table else "sweep"
    console.print(f"[bold]{escape(name + (f' ({sweep.scale})' if sweep.scale else ''))}[/bold]")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("rounds", no_wrap=True, justify="right")
    table.add_column("state", overflow="fold")
    for run in runs:
        more = f" and {len(run.cells) - 1} more" if len(run.cells) > 1 else ""
        rounds = str(run.job.plain["rounds"]) if run.job.plain else ""
        table.add_row(*map(escape, (run.cells[0] + more, rounds, run.state)))
    console.print(table)
    done = sum(run.done for run in runs)
    bad = sum(run.job.plain is None for run in runs)
    said = [f"{len(runs)} runs of {len(sweep.jobs)} cells", f"{done} done", f"{len(runs) - done - bad} to do"]
    said += [f"{bad} cannot be composed"] if bad else []
    console.print(", ".join(said), markup=False)
