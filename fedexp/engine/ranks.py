"""One run over several processes that torchrun has started, on one machine or on many: its ranks.

All ranks do the same on the same numbers, but for local training, of which each does a share. What its clients leave
goes to all ranks, in the order of the cohort: nothing depends on who trained whom, and so not on how many ranks there
are. Where there is one process, nothing here does anything.
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
    """What a rank's share of a cohort leaves, without the numbers: the tree's branches, and (path, shape of a client's
    row, dtype) of each leaf; None where it had no client. model: a checksum of what all clients received."""

    form: Tree | None
    layout: list[tuple[tuple[str, ...], torch.Size, torch.dtype]]
    model: str


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Within it the processes of a run are connected, over the devices' own network where these are GPUs, and all but
    the first are silent. They stay connected for their next run, and so that each notices the others' end."""
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
    """What function() gives on each rank, in their order.

    Where it raises, the first rank raises the error of the first rank that has one, and all others end with its exit
    code, without a word. Raises ProcessLost where a rank has ended.
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
    try:
        dist.all_gather_object(answers, (mine, error and _portable(error)))
    except RuntimeError:
        _end(ProcessLost())
    failures = [failure for _, failure in answers if failure is not None]
    if failures:
        _end(error if error is not None and answers[0][1] is not None else failures[0])
    return [each for each, _ in answers]


def agreed(function: Callable[[], T]) -> T:
    """function(), once all ranks have done it."""
    found: list[T] = []
    exchanged(lambda: found.append(function()))
    return found[0]


def from_first(function: Callable[[], T], device: torch.device) -> T:
    """function() of the first rank, on all: nested dicts and lists of numbers, words and tensors. Tensors that are not
    on a CPU come to `device`."""
    if size() == 1:
        return function()

    def written() -> bytes:
        file = io.BytesIO()
        if launch.is_first():
            torch.save(function(), file)
        return file.getvalue()

    content = io.BytesIO(exchanged(written)[0])
    return torch.load(content, map_location=files.onto(device), weights_only=True)


def first_here(function: Callable[[], T]) -> T:
    """function(), on each machine by one rank first: what it downloads is there for the others."""
    if size() == 1:
        return function()
    first = launch.local_rank() == 0
    found = agreed(lambda: function() if first else None)
    later = agreed(lambda: None if first else function())
    return found if first else later  # type: ignore[return-value]


def share(costs: Sequence[int], count: int) -> list[list[int]]:
    """Which of a cohort's clients each of so many ranks trains, given what each client costs [K]: about as much for all
    ranks, and as many clients as in any other cohort of K."""
    order = sorted(range(len(costs)), key=lambda client: -costs[client])
    return [order[rank::count] for rank in range(count)]


def trained(shares: list[list[int]], received: Tree, train: Callable[[list[int]], Tree], device: torch.device) -> Tree:
    """What train(clients) leaves of all shares, leaves [K, ...] in the cohort's order, on `device`.

    received: what all clients get, leaves [K, ...]. Raises ConfigError where it is not the same on all ranks.
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
    """Each leaf of all ranks [K, ...], given this rank's; as bytes, so that all leaves cross at once."""
    widths = [shape.numel() * dtype.itemsize for _, shape, dtype in layout]
    most = max(map(len, shares))
    box = torch.zeros(most, sum(widths), dtype=torch.uint8, device=device)
    for (_, leaf), part in zip(tree.leaves(left), box.split(widths, 1)):
        part[: len(leaf)] = leaf.to(device).reshape(len(leaf), leaf[0].numel()).contiguous().view(torch.uint8)
    boxes = [torch.empty_like(box) for _ in shares]
    try:
        dist.all_gather(boxes, box)
    except RuntimeError:
        _end(ProcessLost())
    place = {client: rank * most + row for rank, mine in enumerate(shares) for row, client in enumerate(mine)}
    every = torch.cat(boxes)[[place[client] for client in range(len(place))]]
    return [
        part.contiguous().view(dtype).view(len(every), *shape)
        for part, (_, shape, dtype) in zip(every.split(widths, 1), layout)
    ]


def _checksum(received: Tree) -> str:
    """Of what the first client receives: ranks whose models differ show it."""
    sums = [leaf[0].double().sum() for _, leaf in tree.leaves(received)]
    return str(torch.stack(sums).tolist()) if sums else ""


def _portable(error: Exception) -> Exception:
    """What another process can say of an error: itself, if it is said in one line."""
    if isinstance(error, ConfigError | Busy | Interrupted | Unsaved | WorkerDied):
        return error
    told = "".join(traceback.format_exception(error))
    return RuntimeError(f"process {dist.get_rank()} of this run failed:\n{told}")


def _end(error: Exception) -> NoReturn:
    """Raise the error on the first rank; end the others with its exit code, which need not say it too."""
    if launch.is_first():
        raise error
    raise SystemExit(getattr(error, "exit_code", 1))
