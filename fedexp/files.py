"""Writing files so that a crash, a full disk or a failing disk cannot damage them unnoticed.

Each is written under another name and then renamed, so that the old file stays whole until the new one is complete.
Files that are read back to be computed with (checkpoints, caches) end in a line with their length and checksum.
"""

import hashlib
import io
import os
import pickle
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    import torch

_MARK = b"\nfedexp blake2b "
_BLOCK = 1 << 20
_PLAIN = (int, float, complex, bool, str, bytes, type(None))  # numpy's numbers are of other types
# What loading may raise for a file that has the right checksum but was not written by fedexp.
_LOADING = (pickle.UnpicklingError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError)


class Damaged(Exception):
    """The file is not what was saved; the message, which follows the file's name, says in what way."""


def write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Create or replace `path` with what `fill` writes; on any error the old file stays as it was."""
    # A process number alone would not do: on a shared disk two machines may have the same.
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        write_in_place(beside, fill)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_in_place(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write `path` itself and flush it to the disk: for a name that nothing reads in the meantime."""
    with open(path, "wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())


def user_cache() -> Path | None:
    """fedexp's folder in the user's cache folder: $XDG_CACHE_HOME/fedexp, by default ~/.cache/fedexp; None for a user
    without a home folder."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedexp"
    except RuntimeError:
        return None


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    write(path, lambda file: file.write(content))


def save(content: Any, file: BinaryIO) -> "_Counted":
    """torch.save, except that it raises OSError wherever the file cannot be written: within a tensor, torch raises a
    RuntimeError instead."""
    import torch  # only here: most callers of this module never need it

    counted = _Counted(file)
    try:
        torch.save(content, cast(IO[bytes], counted))
    except RuntimeError:
        if counted.failure is None:
            raise
        raise counted.failure from None
    return counted


def dump(content: Any, file: BinaryIO) -> None:
    """`save`, then a last line with the length and the checksum of the content; torch.load ignores that line."""
    counted = save(content, file)
    file.write(_last_line(counted.digest, counted.length))


def unsavable(content: Any, name: str = "") -> str:
    """The first entry that `dump` would write but `load` refuse, and its type, as text; empty if there is none."""
    import torch

    if isinstance(content, dict | list | tuple):
        entries = content.items() if isinstance(content, dict) else enumerate(content)
        inside = (unsavable(each, f"{name}.{key}".lstrip(".")) for key, each in entries)
        return next(filter(None, inside), "")
    plain = isinstance(content, torch.Tensor) or type(content) in _PLAIN
    return "" if plain else f"{name}, a {type(content).__name__},"


def load(path: Path, map_location: Any = None) -> Any:
    """What `dump` wrote. The checksum is compared before anything is unpickled.

    Raises Damaged where the file cannot be read, carries no checksum, does not match it, or holds anything but plain
    values and tensors: no code from a file is run.
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
    """For torch.load's map_location: tensors that were on a CPU stay there (algorithms keep some of their state on it),
    all others are moved to `device`."""
    from torch.serialization import default_restore_location

    def place(storage: "torch.UntypedStorage", tag: str) -> "torch.UntypedStorage":
        return storage if tag == "cpu" else default_restore_location(storage, str(device))

    return place


class _Counted:
    """Passes on what is written and computes its checksum on the way, so that nothing must be read back."""

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
    digest = _digest()
    for first in range(0, length, _BLOCK):
        digest.update(file.read(min(_BLOCK, length - first)))
    found = file.read()
    if not found.startswith(_MARK):
        raise Damaged("has no checksum at its end: damaged, cut short, or saved by an earlier version of fedexp")
    if found != _last_line(digest, length):
        raise Damaged("is damaged: it does not match its checksum")


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=32)


def _last_line(digest: hashlib.blake2b, length: int) -> bytes:
    """Plain text of a fixed length, which cannot be taken for the end of a zip file; torch's files are zip files."""
    return _MARK + f"{digest.hexdigest()} {length:020}\n".encode()
