"""The local steps of a vectorized cohort: launched one by one, or, on a GPU, recorded once as CUDA graphs and replayed.

A step is some fifty small kernels, which a GPU carries out faster than Python launches them. A graph launches them all
at once; it always reads and writes the same places in memory, so all that changes is copied there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fedexp import tree
from fedexp.engine.contract import Batch, Client
from fedexp.engine.optimizer import Optimizer
from fedexp.errors import ConfigError
from fedexp.tree import Stack

_KEPT = 4  # passes of an algorithm, or cohorts of different forms, whose graphs are kept at once


@dataclass
class Steps:
    """All that the steps of one pass read and write besides batches. function: carries out a step of the rows that it
    is given. stack: the weights [K, ...]; cohort: the clients; total: the sum of their losses [K]."""

    function: Callable[..., None]
    optimizer: Optimizer
    stack: Stack
    cohort: Client
    total: Tensor

    def __call__(self, active: int, batch: Batch, padded: bool) -> None:
        """One step of the first `active` rows; batch: theirs."""
        live = {name: leaf[:active] for name, leaf in self.stack.items()}
        now = over_leaves(itemgetter(slice(active)), self.cohort)
        self.function(self.optimizer, live, self.total[:active], batch, now, padded)


class Recorded:
    """Steps as CUDA graphs, one for each number of active rows and shape of the batch."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.stack, self.total = steps, steps.stack, steps.total
        steps.cohort = over_leaves(_place, steps.cohort)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.graphs: dict[Any, tuple[torch.cuda.CUDAGraph | None, Batch]] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def begin(self, steps: Steps) -> None:
        """Start another pass, with the weights and clients of `steps`."""
        mine, optimizer = self.steps, self.steps.optimizer
        if isinstance(optimizer.lr, Tensor):
            optimizer.lr.fill_(steps.optimizer.lr)
        elif optimizer.lr != steps.optimizer.lr:  # the graphs have it as a constant
            optimizer.lr = steps.optimizer.lr
            self._begin_anew()
        for leaf in (mine.total, optimizer.taken, *(leaf for slot in optimizer.memory for leaf in slot)):
            leaf.zero_()
        for name, leaf in steps.stack.items():
            mine.stack[name].copy_(leaf)
        for place, values in zip(mine.cohort, steps.cohort):
            _fill(place, values)

    def __call__(self, active: int, batch: Batch, padded: bool) -> None:
        """One step of the first `active` rows. The first of its size is carried out as it is, which readies libraries
        for the recording; the second is recorded."""
        shape = active, padded, batch.x.shape
        first = shape not in self.graphs
        if first:
            self.graphs[shape] = None, Batch(*(part.clone() for part in batch))
        graph, place = self.graphs[shape]
        for into, part in zip(place, batch):
            into.copy_(part)
        if first:
            self.steps(active, place, padded)
            return
        if graph is None:
            graph = self._recorded(active, place, padded)
            self.graphs[shape] = graph, place
        graph.replay()

    def _recorded(self, active: int, place: Batch, padded: bool) -> torch.cuda.CUDAGraph:
        """A graph of one step. Raises ConfigError where that is impossible."""
        graph = torch.cuda.CUDAGraph()
        try:
            with recording(graph, self.pool):
                self.steps(active, place, padded)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            right = f"a local step cannot be recorded ({first}): it may wait for the GPU, as .item() does; use false"
            raise ConfigError("hardware.cuda_graphs", True, right) from error
        return graph


class Recordings:
    """The graphs of one engine."""

    def __init__(self) -> None:
        self.known: list[tuple[Any, Recorded]] = []

    def of(self, kind: Any, steps: Steps) -> Recorded:
        """The graphs of steps of this kind and form, ready to begin with `steps`; new ones where there are none. kind:
        all that decides what a step does, apart from the learning rate and what is on the device."""
        kind = kind, _form(steps)
        for known, recorded in self.known:
            if known == kind:
                recorded.begin(steps)
                return recorded
        self.known = [*self.known[1 - _KEPT :], (kind, Recorded(steps))]
        return self.known[-1][1]

    def forget(self) -> None:
        """Free the memory of all graphs."""
        self.known = []


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Within this block kernels are recorded instead of carried out. No garbage is collected meanwhile: an earlier
    graph that is freed ends the recording."""
    collected = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        if collected:
            gc.enable()


def over_leaves(function: Any, part: Any) -> Any:
    """`function` over the leaves of nested dicts, a Client or a Batch."""
    if isinstance(part, tuple):
        return type(part)(*(tree.apply(function, field) for field in part))
    return tree.apply(function, part)


def _form(steps: Steps) -> Any:
    """The names, shapes, types and memory formats of all that a pass's steps read and write."""
    parts = {"stack": steps.stack, **steps.cohort._asdict()}
    return [(path, leaf.shape, leaf.dtype, leaf.stride()) for path, leaf in tree.leaves(parts)]


def _place(leaf: Tensor) -> Tensor:
    """A copy of a leaf [K, ...], in which a row that all share stays one."""
    return leaf[:1].clone().expand_as(leaf) if tree.is_spread(leaf) else leaf.clone()


def _fill(place: Any, values: Any) -> None:
    for (_, into), (_, leaf) in zip(tree.leaves(place), tree.leaves(values)):
        rows = slice(1 if tree.is_spread(leaf) else None)
        into[rows].copy_(leaf[rows])
