"""Randomness keyed by what it is for, never by when it is drawn.

Every draw belongs to a key made of (seed, purpose, round, client, ...). So results depend neither on
the order in which clients train, nor on how many train at once, nor on where a run was resumed.
"""

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 63) - 1


def key(seed: int, purpose: str, *where: int) -> int:
    """A 63-bit integer that names one use of randomness, e.g. key(seed, "shuffle", round, client)."""
    name = ":".join([str(seed), purpose, *map(str, where)])
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") & _MASK


def generator(seed: int, purpose: str, *where: int) -> torch.Generator:
    """A fresh CPU generator for one use of randomness."""
    return torch.Generator().manual_seed(key(seed, purpose, *where))


def numpy_generator(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """The same for numpy's algorithms."""
    return np.random.default_rng(key(seed, purpose, *where))


@contextmanager
def seeded(key: int, held: bool = False) -> Iterator[None]:
    """Within this block the global generators of Python, NumPy and PyTorch's CPU start from this key; then they are as
    before (but NumPy forgets a normal number that it drew in advance). So what draws from them, such as fresh layers or
    a user's own code, draws the same again.

    held: other threads that reach such a block wait until this one ends, so that runs in several threads do not disturb
    it. For short blocks.
    """
    with _lock if held else nullcontext():
        with _lock:
            # NumPy's generator is put aside: copying its state would take longer than all the rest.
            mine = [(random.getstate(), _numpy_s(), torch.get_rng_state())]
            _before.append(mine)
            _set_numpy(other := _spare.pop() if _spare else np.random.MT19937())
            random.seed(key)
            np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002  # a user's code draws there
            torch.default_generator.manual_seed(key)
        try:
            yield
        finally:
            with _lock:
                _restore(mine)
                _spare.append(other)


def places() -> tuple[Any, ...]:
    """Where the global generators of Python and NumPy are within a `seeded` block: equal if nothing was drawn."""
    return random.getstate(), _numpy_s().state["state"]["pos"]


def _restore(mine: list[Any]) -> None:
    """Set the generators as they were before a block, unless another thread has begun one since: it will do so."""
    place = next(number for number, each in enumerate(_before) if each is mine)
    del _before[place]
    if place < len(_before):
        _before[place][:] = mine
        return
    for set_one, state in zip((random.setstate, _set_numpy, torch.set_rng_state), mine[0]):
        set_one(state)


def _unlock() -> None:
    global _lock
    _lock = RLock()


_numpy_s: Any = np.random.get_bit_generator  # type: ignore[attr-defined]
_set_numpy: Any = np.random.set_bit_generator  # type: ignore[attr-defined]
_before: list[list[Any]] = []  # for each block that has begun, in this order: the generators before it
_spare: list[np.random.MT19937] = []
_lock = RLock()
os.register_at_fork(after_in_child=_unlock)  # another thread may hold it as a worker process is started


def mix(value: Tensor) -> Tensor:
    """Scramble int64 values into [0, 2**31), elementwise: the same on every device and under vmap.

    Two rounds of a 31-bit multiply-xorshift hash; 31 bits, so that no product leaves int64.
    """
    value = (value ^ (value >> 31)) & 0x7FFFFFFF
    for multiplier in (0x3C6EF373, 0x1B873593):
        value = ((value ^ (value >> 15)) * multiplier) & 0x7FFFFFFF
    return value ^ (value >> 13)


def integers(keys: Tensor, count: int, stream: int = 0) -> Tensor:
    """Uniform numbers from 0 to 2**31 - 1 from int64 keys [...]: int64 [..., count], a pure function of (key, stream).

    One client and a whole cohort therefore see the same numbers. Streams that are equal modulo 128 give the same
    numbers in another order; those of layers (from 0 up), of compressions (2000 to 2023: 80 to 103) and of losses (1000
    to 1023: 104 to 127) stay apart in models of up to 80 layers that draw.
    """
    counter = torch.arange(count, device=keys.device) + (stream << 24)
    return mix(mix(keys).unsqueeze(-1) * 0x2545F49 + mix(counter))


def uniform(keys: Tensor, count: int, stream: int = 0) -> Tensor:
    """The same in [0, 1): float32 [..., count]. Dropout and augmentation draw with it."""
    numbers = integers(keys, count, stream).float() / 2**31
    return numbers.clamp(max=1 - 2**-24)  # float32 rounds the 64 largest of the 2**31 up to 1
