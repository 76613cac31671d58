"""A row of tensors per client: what each client remembers, or what the server keeps about each client.

Only clients that have taken part cost memory: a million clients of which a thousand were drawn take a thousand rows,
plus as many as a cohort has clients. Of a run's several processes the first one alone keeps the rows, since it writes
them to checkpoints, and sends the others those that a round needs: all of them call `take` at the same time.

A store is a nested dict of tensors and numbers, so that a checkpoint can hold it: first, the row of every client that
has none of its own yet; rows, a stack whose leading axis grows as needed ({} where another process keeps it); place,
int64 [N], the index in `rows` of each client's row (-1: none); free, int64, indices of replaced rows, to be used again;
count, rows in use and free together.
"""

from typing import Any

import torch
from torch import Tensor

from fedexp import tree
from fedexp.config import launch
from fedexp.engine import ranks
from fedexp.errors import require
from fedexp.tree import Tree

Store = dict[str, Any]


def new(first: Tree, clients: int, device: torch.device | None = None) -> Store:
    """A store for N clients, none of which has a row. device: where rows are kept; None: on the device of `first`."""
    first = first if device is None else tree.to(first, device)
    rows = tree.apply(lambda leaf: leaf.new_empty(0, *leaf.shape), first) if launch.is_first() else {}
    nobody, none = torch.full((clients,), -1), torch.empty(0, dtype=torch.int64)
    return {"first": first, "rows": rows, "place": nobody, "free": none, "count": 0}


def take(store: Store, ids: Tensor) -> Tree:
    """The rows of clients `ids` [K]: leaves [K, ...]; `first` for those that have none."""
    place = store["place"][ids]
    if store["count"] == 0:
        return tree.spread(store["first"], len(ids))

    def chosen(first: Tensor, rows: Tensor) -> Tensor:
        where = place.to(rows.device).view(-1, *[1] * first.dim())
        return torch.where(where >= 0, rows[where.flatten()], first)

    return ranks.rows_from_first(lambda: tree.apply(chosen, store["first"], store["rows"]), store["first"], len(ids))


def put(store: Store, ids: Tensor, new: Tree) -> Store:
    """The store with rows `new` [K, ...] of clients `ids` [K].

    The memory of all clients must not be copied every round, so rows are written in place, but never over a row that
    `store` refers to: `store` still reads as before, until `put` is called on the store returned here.
    """
    _check(store["first"], new)
    if next(tree.leaves(new), None) is None:
        return store
    place, free, count, clients = store["place"].clone(), store["free"], store["count"], ids.unique()
    replaced, again = place[clients], free[: len(clients)]
    total = count + len(clients) - len(again)
    place[clients] = torch.cat([again, torch.arange(count, total)])
    free = torch.cat([free[len(again) :], replaced[replaced >= 0]])
    rows = store["rows"]
    if rows and total > (held := tree.length(rows)):
        more = max(total, min(len(place) + len(clients), 2 * held)) - held
        rows = tree.apply(lambda leaf: torch.cat([leaf, leaf.new_zeros(more, *leaf.shape[1:])]), rows)
    tree.put(rows, place[ids], new)
    return {**store, "rows": rows, "place": place, "free": free, "count": total}


def _check(first: Tree, new: Tree) -> None:
    """Raise ConfigError unless rows have the names, shapes and kinds of numbers of the first one."""
    known, given = dict(tree.leaves(first)), dict(tree.leaves(new))
    for path in {**known, **given}:
        name, old, row = ".".join(map(str, path)), known.get(path), given.get(path)
        fits = old is not None and row is not None and old.shape == row.shape[1:]
        fits = fits and torch.promote_types(old.dtype, row.dtype) == old.dtype  # any other would be cut down silently
        encoding = path[0] == "compression"
        hook, first_of = ("compression.encode", "compression.init") if encoding else ("remember", "memory(ctx, params)")
        require(
            fits, "", hook,
            f"must return what {first_of} does: {name} is {_told(row, 1)}, and in memory {_told(old, 0)}",
        )  # fmt: skip


def _told(leaf: Tensor | None, first: int) -> str:
    return "missing" if leaf is None else f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape[first:])}"


def held(store: Store, ids: Tensor) -> Tensor:
    """Which of clients `ids` have a row of their own: bool [K]."""
    return store["place"][ids] >= 0


def without_rows(values: Any) -> Any:
    """Nested dicts as the processes that keep no rows have them: {} for the rows of every store in them."""
    if not isinstance(values, dict):
        return values
    is_store = {"first", "rows", "place", "free", "count"} == values.keys()
    return {name: {} if is_store and name == "rows" else without_rows(each) for name, each in values.items()}
