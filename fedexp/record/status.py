"""The status of a run, as written in its result.json."""

from enum import StrEnum


class Status(StrEnum):
    """How a run ended; without a result: it was started, or is running in a process now."""

    FINISHED = "finished"
    DIVERGED = "diverged"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    STARTED = "started"
    RUNNING = "running"


DONE = (Status.FINISHED, Status.DIVERGED)  # nothing is left to do
