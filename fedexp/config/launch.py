"""How this process was started, read from the environment: alone, or by torchrun as one of a run's processes."""

import os
from collections.abc import Iterable

from fedexp.errors import require


def count() -> int:
    """The number of this run's processes, on all machines."""
    return _number("WORLD_SIZE", 1)


def rank() -> int:
    """This process's number among them, from 0."""
    return _number("RANK", 0) if count() > 1 else 0


def is_first() -> bool:
    """Whether this process writes files, prints and reports to trackers: it is the only one, or has rank 0."""
    return rank() == 0


def local_count() -> int:
    """The number of this run's processes on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1) if count() > 1 else 1


def local_rank() -> int:
    """This process's number among those on this machine, from 0: also the number of its GPU."""
    return _number("LOCAL_RANK", 0) if count() > 1 else 0


def hide_gpus(devices: Iterable[str]) -> None:
    """To be called before PyTorch is used, with hardware.device of each run that this process will carry out: where all
    are cpu, PyTorch sees no GPU. Where it sees one, a process that has computed a gradient cannot fork a worker that
    computes gradients."""
    if {*devices} == {"cpu"}:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _number(name: str, otherwise: int) -> int:
    value = os.environ.get(name, "")
    require(value.isdecimal() or not value, name, value, "must be a whole number, as torchrun sets it")
    return int(value or otherwise)
