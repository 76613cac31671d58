"""How far a run has come, in the words of its result.json."""

from enum import StrEnum


class Status(StrEnum):
    """What ended a run; of one without a result, that it was begun, or that a process is at work on it now."""

    FINISHED = "finished"
    DIVERGED = "diverged"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    STARTED = "started"
    RUNNING = "running"


DONE = (Status.FINISHED, Status.DIVERGED)  # nothing is left to do
