"""What was computed from a folder of files, kept beside them until the folder changes."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor


def cached(cache: Path, files: list[Path], compute: Callable[[], Tensor]) -> Tensor:
    """compute(), or what it gave before, where `files` (names, sizes, times) are still the same.

    A cache that cannot be read is rebuilt; one that cannot be written is done without, saying so.
    """
    listing = hashlib.blake2b(digest_size=16)
    for file in files:
        stat = file.stat()
        listing.update(f"{os.path.relpath(file, cache.parent)}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    fingerprint = listing.hexdigest()
    if cache.exists():
        try:
            held = torch.load(cache, weights_only=True)
            if held["listing"] == fingerprint:
                return held["content"]
        except Exception:  # unpickling a torn file raises anything; it is rebuilt just like an old one
            pass
    content = compute()
    try:
        beside = cache.with_suffix(f".{os.getpid()}.tmp")
        torch.save({"listing": fingerprint, "content": content}, beside)
        beside.replace(cache)
    except OSError as error:
        print(f"fedexp: what was read could not be kept at {cache} ({error}); going on without")
    return content
