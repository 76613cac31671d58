"""Progress of a sweep: a line whenever it changes, and a list of failed runs at the end."""

import json
import math
import shlex
import threading
import time
from itertools import islice
from pathlib import Path

from rich.console import Console

from fedexp.record.status import DONE, Status
from fedexp.sweep.jobs import Job

_STOPPED = (Status.FAILED, Status.INTERRUPTED)
_SHOWN = 10  # refused runs whose reasons stand at a sweep's beginning; its end has them all
_LOOKS, _LINES = 2.0, 10.0  # seconds between two looks at the folders, and at least between two lines about them


class Progress:
    """Counts a sweep's runs. found: finished before, or by another process in the meantime; done: finished in this
    sweep; failed: name -> reason."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.console = Console(highlight=False)
        self.found = self.done = self.diverged = 0
        self.failed: dict[str, str] = {}
        self.folders: dict[str, Path] = {}

    def begin(self, todo: int) -> None:
        self.todo, self.started = todo, time.monotonic()
        before = f", {self.found} finished before" if self.found else ""
        bad = f", {len(self.failed)} refused" if self.failed else ""
        self._print(f"runs to do: {todo}{before}{bad}")
        for name, reason in islice(self.failed.items(), _SHOWN):
            self.console.print(f"  refused: {name}: {reason.splitlines()[0]}", markup=False, soft_wrap=True)
        if len(self.failed) > _SHOWN:
            self.console.print(f"  and {len(self.failed) - _SHOWN} more; --dry-run lists them all", soft_wrap=True)

    def add_done(self, status: str) -> None:
        self.done += 1
        self.diverged += status == Status.DIVERGED

    def wait(self, busy: int) -> None:
        self._print(f"waiting for runs that other processes are at: {busy}")

    def add_failure(self, job: Job, reason: str) -> None:
        """Keep why a run failed, and how to run it alone."""
        reason = reason.removeprefix(f"{job.name}: ")  # one swept key is often the wrong one
        self.failed[job.name] = f"{reason}\n    alone: python -m fedexp {shlex.join(job.words)}"

    def say(self, running: str | int, done: int = 0, failed: int = 0) -> None:
        """Print the progress line. running: the running run's name, or how many are running; done, failed: how many
        more runs than have been added."""
        done, failed = done + self.done, failed + len(self.failed)
        parts = [f"{self.found + done}/{self.found + self.todo} done"]
        if isinstance(running, int):
            parts.append(f"{running} running")
        if failed:
            parts.append(f"{failed} failed")
        if done and done < self.todo:
            parts.append(f"about {_duration((time.monotonic() - self.started) / done * (self.todo - done))} left")
        if isinstance(running, str):
            parts.append(f"now {running}")
        self._print(", ".join(parts))

    def interrupted(self) -> None:
        """Print the last line of a sweep that was asked to stop."""
        left = self.todo - self.done - len(self.failed)
        self._print(f"stopped: {self.done} done now, {self.found} finished before, {max(left, 0)} left")

    def summary(self) -> None:
        """Print the last lines: totals, and each failure with its reason."""
        parts = [f"{self.done} done now", f"{self.found} finished before", f"{len(self.failed)} failed"]
        if self.diverged:
            parts.append(f"{self.diverged} diverged")
        self._print(", ".join(parts))
        for name, reason in self.failed.items():
            self.console.print(f"  failed: {name}: {reason}", markup=False, soft_wrap=True)

    def _print(self, text: str) -> None:
        self.console.print(f"fedexp {self.name}: {text}", markup=False, soft_wrap=True)


class Composing:
    """Prints how many of a large sweep's runs are composed; called before each. It prints a line before the first one,
    which takes long: it imports what the runs are made of."""

    def __init__(self, seconds: float = 3.0) -> None:
        self.seconds, self.said, self.count = seconds, -math.inf, 0

    def __call__(self, every: int) -> None:
        """Print a line if it is time for one, before one more run of `every` is composed."""
        if every >= 100 and time.monotonic() - self.said >= self.seconds:
            self.said = time.monotonic()
            print(f"fedexp: {self.count:,} of {every:,} runs composed", flush=True)
        self.count += 1


class Watch:
    """Within the context, follows the folders of runs that other processes carry out."""

    def __init__(self, progress: Progress, paths: list[Path]) -> None:
        self.progress, self.paths, self.began = progress, paths, time.time()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def status(self, path: Path) -> str | None:
        """A run's status by its folder: that of a result written since the sweep began, running, or None."""
        try:
            if (path / "result.json").stat().st_mtime >= self.began - 1:
                return json.loads((path / "result.json").read_text())["status"]
        except (OSError, ValueError):
            pass
        return Status.RUNNING if (path / ".owner").exists() else None

    def _follow(self) -> None:
        before, said = None, 0.0
        while not self._end.wait(_LOOKS):
            states = [self.status(path) for path in self.paths]
            counts = [sum(state in kind for state in states) for kind in ((Status.RUNNING,), DONE, _STOPPED)]
            if counts != before and time.monotonic() - said >= _LINES:
                before, said = counts, time.monotonic()
                self.progress.say(*counts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
