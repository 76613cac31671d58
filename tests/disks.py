"""Disks that are full: real ones of a chosen size, where this process may mount them, and a limit on files."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[Path]:
    """A file system in memory, mounted at `path` within the context: size=2m, nr_inodes=6. Skips where that is not
    allowed."""
    path.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def resize(disk: Path, options: str) -> None:
    """Give a small disk another size, with what it holds."""
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """As on a full disk, writing beyond `size` bytes fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
