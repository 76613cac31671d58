"""A cache of what was computed from a folder of files, kept beside them until the folder changes.

If that folder cannot be written to, as is common for shared data, the cache is kept in the user's cache folder.
"""

import glob
import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from torch import Tensor

from fedexp import files
from fedexp.errors import ConfigError, require

_LONGEST_WRITE = 3600.0  # seconds


def cached(cache: Path, sources: list[Path], compute: Callable[[], Tensor]) -> Tensor:
    """compute(), or its earlier result if `sources` (names, sizes, times) have not changed since. Of the times, that of
    the last change of a file's entry tells when files of equal size and age have swapped their names.

    A damaged cache is rebuilt; if no place can be written to, nothing is cached. Both are reported. Raises ConfigError
    for a source that is not a file, such as a broken link.
    """
    listing = hashlib.blake2b(digest_size=16)
    for file in sources:
        try:
            stat = file.stat()
        except OSError as error:
            raise ConfigError("dataset.root", file, f"cannot be read ({error.strerror})") from error
        require(S_ISREG(stat.st_mode), "dataset.root", file, "is not an ordinary file")
        listing.update(
            f"{os.path.relpath(file, cache.parent)}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}\n".encode()
        )
    fingerprint, places = listing.hexdigest(), [cache, *_elsewhere(cache)]
    for place in filter(os.path.exists, places):
        try:
            held = files.load(place)
            if isinstance(held, dict) and held.get("listing") == fingerprint and isinstance(held["content"], Tensor):
                return held["content"]
        except files.Damaged as damage:
            print(f"fedexp: {place} {damage}; rebuilding it")
    content, reasons = compute(), []
    for place in places:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _clear(place)
            files.write(place, lambda file: files.dump({"listing": fingerprint, "content": content}, file))
            return content
        except OSError as error:
            reasons.append(f"{place} ({error})")
    print(f"fedexp: could not write a cache at {' or '.join(reasons)}; going on without one")
    return content


def _clear(place: Path) -> None:
    """Remove temporary files that killed processes left beside the cache. No lock is needed: only files older than any
    write takes are removed."""
    for left in place.parent.glob(f".{glob.escape(place.name)}.*.tmp"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _LONGEST_WRITE:
                left.unlink()


def _elsewhere(cache: Path) -> list[Path]:
    """The same cache in the user's cache folder, named by its path; none for a user without a home folder."""
    folder = files.user_cache()
    path = hashlib.blake2b(os.fsencode(cache.absolute()), digest_size=8).hexdigest()
    return [] if folder is None else [folder / f"{path}{cache.name}"]
