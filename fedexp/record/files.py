"""Files written beside and renamed into place, so that a crash or a full disk leaves the old one whole."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write(path: Path, fill: Callable[[BinaryIO], None]) -> None:
    """Create or replace `path` with what `fill` writes; on any error the old file stays as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write(path, lambda file: file.write(text.encode()))
