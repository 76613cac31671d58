"""The world: all examples on the device for the whole run, and which client holds which of them."""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedexp.data.transform import Transform, are_tokens
from fedexp.randomness import mix, uniform


@dataclass(frozen=True)
class Noise:
    """Gaussian noise on prepared inputs. deviation: its standard deviation for each training example [n]. A training
    batch draws new noise by its own key; key: the base of each example's fixed noise wherever there is no batch key."""

    deviation: Tensor
    key: int

    def added(self, x: Tensor, rows: Tensor, keys: Tensor | None) -> Tensor:
        """x [n, ...] of examples `rows` [n] with noise, drawn by `keys` [n], one per example; None: by the examples."""
        each = x[0].numel()
        first, second = uniform(rows + self.key if keys is None else keys, 2 * each, stream=1).split(each, 1)
        normal = (-2 * (-first).log1p()).sqrt() * (2 * math.pi * second).cos()  # the Box-Muller transform
        scale = self.deviation[rows].view(-1, *[1] * (x.dim() - 1))
        return x + (scale * normal.view_as(x)).to(x)


@dataclass(frozen=True)
class World:
    """x uint8 (or float, or tokens) [n, ...], y int64 [n], for train and test; the clients' ragged index into train.

    rows: int64 [sum of sizes], the example ids of client 0, then of client 1, ...; sizes: int64 [N], on
    the CPU, because schedules are made there. held, held_sizes: the same for examples that are held out of training,
    for their client's evaluation alone. memory_device: where clients' memory is kept; None: with the examples.
    test_transform: for the test examples; None: the same as for the training examples. noise: added to training inputs,
    more for some clients than for others; None: no noise. checksum: of the data set.
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
    held: Tensor | None = None
    held_sizes: Tensor | None = None
    test_transform: Transform | None = None
    noise: Noise | None = None
    checksum: int = 0

    @property
    def clients(self) -> int:
        return len(self.sizes)

    @property
    def device(self) -> torch.device:
        return self.x.device

    @property
    def at_once(self) -> int:
        """How many examples to put through a model at once where nothing is trained. On a CPU so few that their
        activations stay small: larger blocks of memory go back to the system each time (glibc: from 32 MB), and every
        page of a new one costs a page fault."""
        return 64 if self.device.type == "cpu" else 500

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one prepared example."""
        return self.transform.shape(tuple(self.x.shape[1:]))

    @property
    def examples(self) -> dict[str, Any]:
        """What a run's result.json says of its examples, so that its model can be built without them."""
        return {"shape": [*self.x.shape[1:]], "tokens": self.tokens, "classes": self.classes}

    @property
    def tokens(self) -> bool:
        """Whether examples are tokens."""
        return are_tokens(self.x)

    @cached_property
    def starts(self) -> list[int]:
        """Where each client's ids begin in `rows`, and last the length of `rows`."""
        return [0, *self.sizes.cumsum(0).tolist()]

    @cached_property
    def label_counts(self) -> Tensor:
        """int64 [N, C], on the CPU."""
        owner = torch.repeat_interleave(torch.arange(self.clients), self.sizes)
        flat = owner * self.classes + self.y.cpu()[self.rows.cpu()]
        return torch.bincount(flat, minlength=self.clients * self.classes).view(self.clients, self.classes)

    @cached_property
    def label_shares(self) -> Tensor:
        """Each client's label distribution: float64 [N, C], on the CPU."""
        return self.label_counts.double() / self.sizes.double()[:, None]

    def of(self, client: int) -> Tensor:
        """The example ids of one client [n_k]."""
        return self.rows[self.starts[client] : self.starts[client + 1]]

    def held_out(self, client: int) -> Tensor:
        """The ids of one client's examples that are held out of training."""
        return self.held[self._held_starts[client] : self._held_starts[client + 1]]

    @cached_property
    def _held_starts(self) -> list[int]:
        return [0, *self.held_sizes.cumsum(0).tolist()]

    @cached_property
    def test_counts(self) -> Tensor:
        """Test examples of each class: int64 [C], on the CPU."""
        return torch.bincount(self.test_y.cpu(), minlength=self.classes)

    def prepare(self, rows: Tensor, keys: Tensor | None = None) -> Tensor:
        """Model input of examples `rows` [..., B]: [..., B, *shape]. With keys [...], one per batch, augmented."""
        flat = rows.reshape(-1)
        if keys is not None and (self.transform.augments or self.noise is not None):
            position = torch.arange(rows.shape[-1], device=self.device).expand_as(rows)
            keys = (mix(keys.unsqueeze(-1)) * 0x2545F49 + mix(position + (1 << 30))).reshape(-1)
        else:
            keys = None
        x = self.transform(_chosen(self.x, flat), keys, self.dtype)
        if self.noise is not None:
            x = self.noise.added(x, flat, keys)
        return x.view(*rows.shape, *self.shape)

    def prepare_test(self, rows: slice) -> Tensor:
        """Model input of a slice of the test examples."""
        return (self.test_transform or self.transform)(self.test_x[rows], None, self.dtype)

    def partition_hash(self) -> str:
        """A hash of the split and of the labels."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (self.sizes, self.rows, self.y):
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    def to(self, device: torch.device) -> "World":
        names = ("x", "y", "test_x", "test_y", "rows", "held")
        moved = {name: getattr(self, name).to(device) for name in names if getattr(self, name) is not None}
        noise = self.noise and replace(self.noise, deviation=self.noise.deviation.to(device))
        return replace(self, **moved, noise=noise)


def _chosen(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows] in the memory format of x, several times as fast as by indexing, which copies number by number."""
    if x.dim() == 4 and not x.is_contiguous():
        return x.movedim(1, -1).index_select(0, rows).movedim(-1, 1)
    return x.index_select(0, rows)
