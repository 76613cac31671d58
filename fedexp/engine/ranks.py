"""One run over several processes (ranks) that torchrun has started, on one machine or on several.

All ranks compute the same numbers, except in local training, where each rank trains a share of the cohort. The results
go to all ranks, in the order of the cohort: nothing depends on which rank trained which client, nor on the number of
ranks. With a single process, the functions here only call what they are given.
"""

import atexit
import io
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fedexp import files, tree
from fedexp.config import launch
from fedexp.errors import Busy, ConfigError, Interrupted, ProcessLost, Unsaved, WorkerDied, require
from fedexp.tree import Tree

T = TypeVar("T")

_PATIENCE = timedelta(days=7)  # ranks wait for one another's training; one that has died is noticed at once


class _Part(NamedTuple):
    """The form of a rank's results, without the numbers. form: the tree's branches, None where the rank had no client.
    layout: (path, shape of a client's row, dtype) of each leaf. model: a checksum of what the first client received."""

    form: Tree | None
    layout: list[tuple[tuple[str, ...], torch.Size, torch.dtype]]
    model: str


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Within this context the processes of a run are connected (on GPUs by NCCL), and all but the first are silent.
    They stay connected afterwards, for their next run, and so that each notices when another one ends."""
    if launch.count() > 1 and not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
        atexit.register(dist.destroy_process_group)
    if launch.is_first():
        yield
    else:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            yield


def size() -> int:
    """How many ranks are connected."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def exchanged(function: Callable[[], T]) -> list[T]:
    """What function() returns on each rank, in the order of the ranks.

    Where it raises, the first rank raises the error of the lowest rank that failed, and all others end with an error's
    exit code and without a message. Raises ProcessLost where a rank has ended.
    """
    if size() == 1:
        return [function()]
    mine: Any = None
    error: Exception | None = None
    try:
        mine = function()
    except Exception as raised:
        error = raised
    answers: list[Any] = [None] * size()
    with _all_alive():
        dist.all_gather_object(answers, (mine, error and _portable(error)))
    failures = [failure for _, failure in answers if failure is not None]
    if failures:
        _end(error if error is not None and answers[0][1] is not None else failures[0])
    return [each for each, _ in answers]


def agreed(function: Callable[[], T]) -> T:
    """What function() returns, once it has returned on all ranks."""
    found: list[T] = []
    exchanged(lambda: found.append(function()))
    return found[0]


def from_first(function: Callable[[], T], device: torch.device, sent: Callable[[T], T] = lambda found: found) -> T:
    """What function() returns on the first rank; on the others, what `sent` leaves of it: nested dicts and lists of
    numbers, strings and tensors. Tensors that are not on a CPU are moved to `device`."""
    found: list[T] = []

    def written() -> bytes:
        file = io.BytesIO()
        if launch.is_first():
            found.append(function())
            torch.save(sent(found[0]), file)
        return file.getvalue()

    if size() == 1:
        return function()
    content = io.BytesIO(exchanged(written)[0])
    return found[0] if found else torch.load(content, map_location=files.onto(device), weights_only=True)


def rows_from_first(function: Callable[[], Tree], row: Tree, count: int) -> Tree:
    """What function() returns on the first rank, `count` rows like `row`, sent to all, leaf by leaf."""
    if size() == 1:
        return function()
    rows = function() if launch.is_first() else tree.apply(lambda leaf: leaf.new_empty(count, *leaf.shape), row)
    with _all_alive():
        for _, leaf in tree.leaves(rows):
            dist.broadcast(leaf.view(torch.uint8), 0)  # as bytes, since gloo does not know all types
    return rows


def first_here(function: Callable[[], T]) -> T:
    """What function() returns, called by one rank of each machine first, so that the others find what it downloads."""
    if size() == 1:
        return function()
    first = launch.local_rank() == 0
    found = agreed(lambda: function() if first else None)
    later = agreed(lambda: None if first else function())
    return found if first else later  # type: ignore[return-value]


def share(costs: Sequence[int], count: int) -> list[list[int]]:
    """Which of a cohort's clients each of `count` ranks trains, given each client's cost [K]. The ranks' costs are
    about equal, and a rank has the same number of clients in every cohort of K."""
    order = sorted(range(len(costs)), key=lambda client: -costs[client])
    return [order[rank::count] for rank in range(count)]


def trained(shares: list[list[int]], received: Tree, train: Callable[[list[int]], Tree], device: torch.device) -> Tree:
    """What train(clients) returns over all shares, leaves [K, ...] in the cohort's order, on `device`.

    received: what all clients receive, leaves [K, ...]. Raises ConfigError where it differs between ranks.
    """
    mine, left = shares[dist.get_rank()], dict[str, Any]()

    def part() -> _Part:
        if not mine:
            return _Part(None, [], _checksum(received))
        left.update(train(mine))
        layout = [(path, leaf.shape[1:], leaf.dtype) for path, leaf in tree.leaves(left)]
        return _Part(tree.form(left), layout, _checksum(received))

    parts = exchanged(part)
    require(
        len({each.model for each in parts}) == 1, "WORLD_SIZE", size(),
        "the processes of this run have computed different models; start them on machines of one kind",
    )  # fmt: skip
    form, layout, _ = next(each for each in parts if each.form is not None)
    return tree.grow(form, dict(zip((path for path, *_ in layout), _gathered(shares, left, layout, device))))


def _gathered(shares: list[list[int]], left: Tree, layout: list[Any], device: torch.device) -> list[Tensor]:
    """Each leaf of all ranks [K, ...], given this rank's; sent as bytes, so that all leaves cross in one exchange."""
    widths = [shape.numel() * dtype.itemsize for _, shape, dtype in layout]
    most = max(map(len, shares))
    box = torch.zeros(most, sum(widths), dtype=torch.uint8, device=device)
    for (_, leaf), part in zip(tree.leaves(left), box.split(widths, 1)):
        part[: len(leaf)] = leaf.to(device).reshape(len(leaf), leaf[0].numel()).contiguous().view(torch.uint8)
    boxes = [torch.empty_like(box) for _ in shares]
    with _all_alive():
        dist.all_gather(boxes, box)
    place = {client: rank * most + row for rank, mine in enumerate(shares) for row, client in enumerate(mine)}
    every = torch.cat(boxes)[[place[client] for client in range(len(place))]]
    return [  # a copy, since a part of a single row counts as contiguous wherever in its box it begins
        part.clone(memory_format=torch.contiguous_format).view(dtype).view(len(every), *shape)
        for part, (_, shape, dtype) in zip(every.split(widths, 1), layout)
    ]


def _checksum(received: Tree) -> str:
    """A checksum of what the first client receives, by which ranks whose models differ are found."""
    sums = [leaf[0].double().sum() for _, leaf in tree.leaves(received)]
    return str(torch.stack(sums).tolist()) if sums else ""


@contextmanager
def _all_alive() -> Iterator[None]:
    """An exchange between all processes: where one of them has ended, this one ends, too."""
    try:
        yield
    except RuntimeError:
        _end(ProcessLost())


def _portable(error: Exception) -> Exception:
    """An error as it is sent to other processes: itself if it is reported in one line, else with its traceback."""
    if isinstance(error, ConfigError | Busy | Interrupted | Unsaved | WorkerDied):
        return error
    told = "".join(traceback.format_exception(error))
    return RuntimeError(f"process {dist.get_rank()} of this run failed:\n{told}")


def _end(error: Exception) -> NoReturn:
    """Raise the error on the first rank; end the others with its exit code, without repeating its message."""
    if launch.is_first():
        raise error
    raise SystemExit(getattr(error, "exit_code", 1))
