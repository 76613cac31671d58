"""Files that a crash, a full disk or a failing one does not spoil unnoticed.

Each is written beside its place and renamed into it, so that the old one stays whole until the new one is. Those that
are read back to be computed with (checkpoints, caches) end in a line with their length and checksum.
"""

import hashlib
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    import torch

_MARK = b"\nfedexp blake2b "
_BLOCK = 1 << 20
# What loading raises for a file whose checksum is right, and which fedexp has not written.
_LOADING = (pickle.UnpicklingError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError)


class Damaged(Exception):
    """The file is not what was saved; the message, which follows the file's name, says in what way."""


def write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Create or replace `path` with what `fill` writes; on any error the old file stays as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_in_place(beside, fill)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_in_place(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write `path` itself, down to the disk: for a name that nothing reads."""
    with open(path, "wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    write(path, lambda file: file.write(content))


def save(content: Any, file: BinaryIO) -> "_Counted":
    """torch.save. Raises OSError where the file cannot be written: in the middle of a tensor torch has an error of its
    own for that."""
    import torch  # only here: most that write files never need it

    counted = _Counted(file)
    try:
        torch.save(content, cast(IO[bytes], counted))
    except RuntimeError:
        if counted.failure is None:
            raise
        raise counted.failure from None
    return counted


def dump(content: Any, file: BinaryIO) -> None:
    """The same, and a last line with the length and the checksum of what it wrote; torch.load ignores that line."""
    counted = save(content, file)
    file.write(_last_line(counted.digest, counted.length))


def load(path: Path, map_location: Any = None) -> Any:
    """What `dump` wrote. The checksum is compared before anything is unpickled.

    Raises Damaged where the file cannot be read, carries no checksum, does not match it, or holds anything but plain
    values and tensors: no code runs on a file's word.
    """
    import torch

    try:
        with open(path, "rb") as file:
            _check(file)
            file.seek(0)
            return torch.load(file, map_location=map_location, weights_only=True)
    except OSError as error:
        raise Damaged(f"cannot be read ({error})") from error
    except _LOADING as error:
        raise Damaged(f"does not hold what fedexp saves ({type(error).__name__})") from error


def onto(device: "torch.device") -> Any:
    """For torch.load's map_location: tensors that were on a CPU stay there (algorithms keep their books on it), all
    others come to `device`."""
    from torch.serialization import default_restore_location

    def place(storage: "torch.UntypedStorage", tag: str) -> "torch.UntypedStorage":
        return storage if tag == "cpu" else default_restore_location(storage, str(device))

    return place


class _Counted:
    """Passes on what is written and takes its checksum meanwhile: nothing is read back for that."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.length = file, _digest(), 0
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.length += memoryview(data).nbytes
        try:
            return self.file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _check(file: io.BufferedReader) -> None:
    length = os.fstat(file.fileno()).st_size - len(_last_line(_digest(), 0))
    digest, left, block = _digest(), length, memoryview(bytearray(_BLOCK))
    while left > 0 and (count := file.readinto(block[: min(left, _BLOCK)])):
        digest.update(block[:count])
        left -= count
    found = file.read()
    if not found.startswith(_MARK):
        raise Damaged("has no checksum at its end: damaged, cut short, or saved by an earlier version of fedexp")
    if found != _last_line(digest, length):
        raise Damaged("is damaged: it does not match its checksum")


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=32)


def _last_line(digest: hashlib.blake2b, length: int) -> bytes:
    """Plain text of one size, which cannot be taken for the end of a zip file, as torch's files are."""
    return _MARK + f"{digest.hexdigest()} {length:020}\n".encode()
