"""The Hydra sweeper of fedexp: `python -m fedexp -m +table=fedcat_1`, or any multirun.

It skips the runs that are finished, starts the others through whatever launcher is chosen, says how far
the sweep is, and lists those that failed at the end instead of stopping at the first.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from fedexp.engine.client import Interrupted
from fedexp.errors import ConfigError, require
from fedexp.jobs import Job, sweeps
from fedexp.record.folder import RunFolder
from fedexp.record.progress import Progress, Watch


class Incomplete(Exception):
    """Some runs of the sweep failed; they have been listed."""


class FedexpSweeper(Sweeper):
    """Expands, skips, launches, reports."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[JobReturn]:
        """Carry out all runs. Raises Incomplete if any failed, Interrupted after a signal."""
        returned: list[JobReturn] = []
        failures = 0
        every = sweeps(arguments)
        for each in every:
            if each.jobs and all(job.config is None for job in each.jobs):
                raise each.jobs[0].error
        folder = Path(self.config.hydra.sweep.dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError("output_root", self.config.output_root, f"cannot be written to ({error})") from error
        for each in every:
            name = each.table.name if each.table else "sweep"
            program = each.table.program if each.table else None
            require(program is None, "table", name, f"has a program of its own: python -m {program}")
            progress = Progress(name if each.scale is None else f"{name} ({each.scale})")
            todo = self._todo(each.jobs, progress)
            returned += self._one_by_one(todo, progress) if self._in_this_process else self._at_once(todo, progress)
            progress.summary()
            failures += len(progress.failed)
        if failures:
            raise Incomplete(f"{failures} of the sweep's runs failed; the same command tries them again")
        return returned

    @property
    def _in_this_process(self) -> bool:
        return self.config.hydra.launcher._target_.endswith(".BasicLauncher")

    def _todo(self, jobs: Sequence[Job], progress: Progress) -> list[Job]:
        """The runs that are not finished, each once: cells may share a run."""
        todo: dict[str, Job] = {}
        for job in jobs:
            if job.config is None:
                progress.add_failure(job.name, _with_command(str(job.error.right), job))
                continue
            if job.fingerprint in todo or job.fingerprint in progress.folders:
                continue
            folder = RunFolder(job.config)
            progress.folders[job.fingerprint] = folder.path
            result = folder.result()
            if result is not None and result["status"] in ("finished", "diverged"):
                progress.found += 1
            else:
                todo[job.fingerprint] = job
        progress.begin(len(todo))
        return list(todo.values())

    def _one_by_one(self, jobs: list[Job], progress: Progress) -> list[JobReturn]:
        returned = []
        for number, job in enumerate(jobs):
            progress.say(running=job.name)
            returned += self.launcher.launch([job.words], initial_job_idx=number)
            self._note(job, returned[-1], progress)
        return returned

    def _at_once(self, jobs: list[Job], progress: Progress) -> list[JobReturn]:
        """All jobs to the launcher together; their folders tell how far they are."""
        if not jobs:
            return []
        paths = [progress.folders[job.fingerprint] for job in jobs]
        with Watch(progress, paths) as watch:
            try:
                returned = list(self.launcher.launch([job.words for job in jobs], initial_job_idx=0))
            except Exception as error:  # a worker that died takes the launcher's call with it, not the others' results
                for job, path in zip(jobs, paths):
                    status = watch.status(path)
                    if status not in ("finished", "diverged"):
                        reason = f"{status or 'not done'} when the launcher ended: {_say(error)}"
                        progress.add_failure(job.name, _with_command(reason, job))
                    else:
                        progress.add_done(status)
                return []
        for job, each in zip(jobs, returned):
            self._note(job, each, progress)
        return returned

    def _note(self, job: Job, returned: JobReturn, progress: Progress) -> None:
        value: Any = returned._return_value  # the property would raise a failed job's exception
        if isinstance(value, Interrupted):
            progress.say()
            raise value
        if returned.status is JobStatus.COMPLETED:
            progress.add_done(value["status"])
        else:
            progress.add_failure(job.name, _with_command(_say(value), job))


def _with_command(reason: str, job: Job) -> str:
    """Why a run failed, and how to run it alone."""
    return f"{reason}\n    alone: python -m fedexp {shlex.join(job.words)}"


def _say(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


# Hydra instantiates only plugins whose name begins with hydra_plugins.
Plugins.instance().class_name_to_class["hydra_plugins.fedexp.Sweep"] = FedexpSweeper
