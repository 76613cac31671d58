"""The end of a sweep, which compares its runs in the terminal, and its dry run, which only lists them."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from fedexp.cli import console
from fedexp.config.compose import composing
from fedexp.errors import Incomplete
from fedexp.sweep.jobs import Sweep, by_run, sweeps
from fedexp.sweep.plan import planned, show
from fedexp.sweep.progress import Composing


def compare(sweep: Sweep, folders: list[Path], words: list[str]) -> None:
    """Print the report's tables of a sweep's runs, where there are several. words: those that asked for them."""
    # Imported only at the end: they need pandas and matplotlib.
    from fedexp.report import any_runs, comparison, published
    from fedexp.report.folders import read
    from fedexp.report.writers import terminal

    runs = read(*folders)
    if len(runs) < 2:
        return
    table = sweep.table if sweep.table and sweep.table.name in published.names() else None  # not one's own
    if table is None:
        asked = {job.fingerprint: job.plain["rounds"] for job, _ in by_run(sweep.jobs) if job.plain is not None}
        page = any_runs.compare_runs([run.at(asked.get(run.fingerprint, run.rounds)) for run in runs])
    else:
        page = comparison.compare(sweep, runs)
    terminal(page, console(80 if table is None else 200))
    others = [word for word in words if not word.lstrip("+").startswith(("table=", "hydra"))]
    place = shlex.join([f"table={table.name}", *others]) if table else shlex.quote(str(folders[0].parent))
    print(f"fedexp: for curves, LaTeX and an interactive page: fedexp report {place}")


def dry_run(words: Sequence[str]) -> None:
    """Print what a sweep's command line would do. Raises what the sweep itself would raise for runs that are refused:
    Incomplete for some, the first one's error for all of a table."""
    with composing():
        every = sweeps(words, say=Composing())
    for sweep in every:
        sweep.check_program()
        show(sweep, planned(sweep), console(100))
    for sweep in every:
        sweep.check()
    if count := sum(job.refused is not None for sweep in every for job in sweep.jobs):
        raise Incomplete(f"{count} of the sweep's runs cannot be carried out; the sweep would leave them out")
