"""The world: all examples on the device for the whole run, and which client holds which of them."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedexp import tree
from fedexp.data.dataset import Transform
from fedexp.randomness import mix
from fedexp.tree import Params, Stack


@dataclass(frozen=True)
class World:
    """x uint8 (or float) [n, ...], y int64 [n], for train and test; the clients' ragged index into train.

    rows: int64 [sum of sizes], the example ids of client 0, then of client 1, ...; sizes: int64 [N], on
    the CPU, because schedules are made there. memory_device: where clients' memory is kept; None: with the examples.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    rows: Tensor
    sizes: Tensor
    classes: int
    transform: Transform
    dtype: torch.dtype = torch.float32
    memory_device: torch.device | None = None

    @property
    def clients(self) -> int:
        return len(self.sizes)

    @property
    def device(self) -> torch.device:
        return self.x.device

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one prepared example."""
        return self.transform.shape(tuple(self.x.shape[1:]))

    @cached_property
    def starts(self) -> list[int]:
        """Where each client's ids begin in `rows`; one more at the end."""
        return [0, *self.sizes.cumsum(0).tolist()]

    @cached_property
    def label_counts(self) -> Tensor:
        """int64 [N, C], on the CPU."""
        owner = torch.repeat_interleave(torch.arange(self.clients), self.sizes)
        flat = owner * self.classes + self.y.cpu()[self.rows.cpu()]
        return torch.bincount(flat, minlength=self.clients * self.classes).view(self.clients, self.classes)

    def of(self, client: int) -> Tensor:
        """The example ids of one client [n_k]."""
        return self.rows[self.starts[client] : self.starts[client + 1]]

    def client_memory(self, params: Params) -> Stack:
        """Zeros like `params` for every client to overwrite: [N, ...], where `hardware.client_memory` says.

        Zeros, because a CPU gives such memory only as it is written: those who never take part need none.
        """
        place = self.memory_device or self.device
        return tree.apply(lambda leaf: leaf.new_zeros(self.clients, *leaf.shape, device=place), params)

    def prepare(self, rows: Tensor, keys: Tensor | None = None) -> Tensor:
        """Model input of examples `rows` [...]: [..., *shape]. With keys [...] (one a batch) augmented."""
        flat = rows.reshape(-1)
        if keys is not None and self.transform.augments:
            position = torch.arange(rows.shape[-1], device=self.device).expand_as(rows)
            keys = (mix(keys.unsqueeze(-1)) * 0x2545F49 + mix(position + (1 << 30))).reshape(-1)
        else:
            keys = None
        return self.transform(self.x[flat], keys, self.dtype).view(*rows.shape, *self.shape)

    def prepare_test(self, rows: slice) -> Tensor:
        """Model input of a slice of the test examples."""
        return self.transform(self.test_x[rows], None, self.dtype)

    def partition_hash(self) -> str:
        """A name for exactly this split of exactly these labels."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (self.sizes, self.rows, self.y):
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    def to(self, device: torch.device) -> "World":
        moved = {name: getattr(self, name).to(device) for name in ("x", "y", "test_x", "test_y", "rows")}
        return replace(self, **moved)
