"""The Hydra sweeper of fedexp: `python -m fedexp -m +table=fedcat_1`, or any multirun.

It skips the runs that are finished, starts the others through the chosen launcher, reports progress, and
lists failed runs at the end instead of stopping at the first.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from fedexp.config import launch
from fedexp.config.explain import in_short
from fedexp.errors import Busy, ConfigError, Incomplete, Interrupted, require
from fedexp.record.folder import Folders, RunFolder
from fedexp.record.status import DONE
from fedexp.sweep.jobs import Job, Sweep, by_run, sweeps
from fedexp.sweep.progress import Composing, Progress, Watch

_SECONDS_BETWEEN_LOOKS = 1.0


class FedexpSweeper(Sweeper):
    """Expands, skips, launches, reports. closing: called at the end with each sweep, its runs' folders, and the words
    of the command line."""

    closing: Callable[[Sweep, list[Path], list[str]], None] = staticmethod(lambda sweep, folders, words: None)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Carry out all runs. Raises Incomplete if any failed, Interrupted after a signal."""
        count = launch.count()
        require(count == 1, "WORLD_SIZE", count, "torchrun is for one run; a sweep starts processes of its own")
        failures = refused = 0
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # as fedexp/__main__.py sets it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.busy: list[Job] = []  # runs that other processes are carrying out
        # Hydra keeps the words about itself back, but further folders of configs have options that these runs choose.
        folders = [word for word in self.config.hydra.overrides.hydra if word.startswith("hydra.searchpath=")]
        every = sweeps([*arguments, *folders], say=Composing())
        for each in every:
            each.check_program()
            each.check()
        folder = Path(self.config.hydra.sweep.dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError("output_root", self.config.output_root, f"cannot be written to ({error})") from error
        for each in every:
            name = each.table.name if each.table else "sweep"
            progress = Progress(name if each.scale is None else f"{name} ({each.scale})")
            todo = self._todo(each.jobs, progress)
            in_this_process = self.config.hydra.launcher._target_.endswith(".BasicLauncher")
            carry_out = self._one_by_one if in_this_process else self._at_once
            try:
                while todo or self.busy:
                    carry_out(todo, progress)
                    todo = self._wait(progress)
            except (Interrupted, KeyboardInterrupt):
                progress.interrupted()
                raise
            progress.summary()
            failures += len(progress.failed)
            refused += sum(job.refused is not None for job in each.jobs)
            folders = [path for path in progress.folders.values() if (path / "config.yaml").exists()]
            self.closing(each, folders, arguments)
        if failures:
            again = "the same command tries them again" if failures > refused else "change what was refused"
            raise Incomplete(f"{failures} of the sweep's runs failed; {again}")

    def _todo(self, jobs: Sequence[Job], progress: Progress) -> list[Job]:
        """The runs that are not finished, each once. Where cells share a run, the one with the most rounds counts."""
        for job in jobs:
            if job.refused:
                progress.add_failure(job, in_short(job.refused))
        folders = Folders()
        todo = [job for job, _ in by_run(jobs) if not job.refused and self._is_to_do(job, folders, progress)]
        launch.hide_gpus(job.config.hardware.device for job in todo)
        progress.begin(len(todo))
        return todo

    def _is_to_do(self, job: Job, folders: Folders, progress: Progress) -> bool:
        folder = RunFolder(job.plain, job.fingerprint, folders)
        progress.folders[job.fingerprint] = folder.path
        try:
            found = folder.finished(job.plain["rounds"])
        except ConfigError as error:
            progress.add_failure(job, str(error))
            return False
        progress.found += found is not None
        return found is None

    def _one_by_one(self, jobs: list[Job], progress: Progress) -> None:
        for number, job in enumerate(jobs):
            progress.say(job.name)
            (returned,) = self.launcher.launch([job.words], initial_job_idx=number)
            self._note(job, returned, progress)

    def _at_once(self, jobs: list[Job], progress: Progress) -> None:
        """Hand all jobs to the launcher at once; progress is read from their folders."""
        if not jobs:
            return
        paths = [progress.folders[job.fingerprint] for job in jobs]
        with Watch(progress, paths) as watch, _interrupting():
            try:
                returned = list(self.launcher.launch([job.words for job in jobs], initial_job_idx=0))
            except Interrupted:
                raise
            except Exception as error:  # a worker's death ends the launcher's call, but other runs' results remain
                for job, path in zip(jobs, paths):
                    status = watch.status(path)
                    if status not in DONE:
                        progress.add_failure(job, f"{status or 'not done'} when the launcher ended: {_say(error)}")
                    else:
                        progress.add_done(status)
                return
        for job, each in zip(jobs, returned):
            self._note(job, each, progress)

    def _note(self, job: Job, returned: JobReturn, progress: Progress) -> None:
        value: Any = returned._return_value  # the property would raise a failed job's exception
        if isinstance(value, Interrupted):
            raise value
        if returned.status is JobStatus.COMPLETED:
            progress.add_done(value["status"])  # a sweep's runs return their whole result to this sweeper
        elif isinstance(value, Busy):
            self.busy.append(job)
        else:
            progress.add_failure(job, _say(value))

    def _wait(self, progress: Progress) -> list[Job]:
        """Wait until other processes have ended some of the busy runs; returns those that they have not finished."""
        if self.busy:
            progress.wait(len(self.busy))
        free: list[Job] = []
        while self.busy and not free:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            free = [job for job in self.busy if not RunFolder(job.plain, job.fingerprint).is_busy()]
        self.busy = [job for job in self.busy if job not in free]
        return [job for job in free if self._is_to_do(job, Folders(), progress)]


@contextmanager
def _interrupting() -> Iterator[None]:
    """Within this context the signals that would end this process at once raise Interrupted: a launcher's own processes
    would otherwise go on without it."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    ending = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]
    for each in ending:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in ending:
            signal.signal(each, signal.SIG_DFL)


def _say(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def register() -> None:
    """Make the sweeper known to Hydra, which instantiates only plugins whose name begins with hydra_plugins. A sweep
    whose launcher carries out runs in this process, as joblib does on one core, makes Hydra forget it."""
    Plugins.instance().class_name_to_class["hydra_plugins.fedexp.Sweep"] = FedexpSweeper
