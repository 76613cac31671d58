"""How this process was started: alone, or by torchrun as one of several of one run, as the environment then says."""

import os

from fedexp.errors import require


def count() -> int:
    """Of this run's processes, on all machines."""
    return _number("WORLD_SIZE", 1)


def rank() -> int:
    """This process's number among them, from 0."""
    return _number("RANK", 0) if count() > 1 else 0


def is_first() -> bool:
    """Whether this is the one that writes files, prints, and tells trackers: the only one, or that of rank 0."""
    return rank() == 0


def local_count() -> int:
    """Of this run's processes on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1) if count() > 1 else 1


def local_rank() -> int:
    """This process's number among those on this machine, from 0: which GPU is its own."""
    return _number("LOCAL_RANK", 0) if count() > 1 else 0


def _number(name: str, otherwise: int) -> int:
    value = os.environ.get(name, "")
    require(value.isdigit() or not value, name, value, "must be a whole number, as torchrun sets it")
    return int(value or otherwise)
