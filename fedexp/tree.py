"""Arithmetic on nested dicts of tensors.

Params is one model by name, buffers included; a Stack is the same with a leading axis of K models.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Params = dict[str, Tensor]
Stack = dict[str, Tensor]
Tree = dict[str, Any]  # nested dicts whose leaves are tensors

_COLUMNS = 2**16


def apply(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    """`function` applied to the leaves of trees of the same structure."""
    first = trees[0]
    if not isinstance(first, dict):
        return function(*trees)
    return {name: apply(function, *(tree[name] for tree in trees)) for name in first}


def leaves(tree: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """(path, leaf) for each leaf, in the order of the dicts."""
    if not isinstance(tree, dict):
        yield path, tree
        return
    for name, branch in tree.items():
        yield from leaves(branch, (*path, name))


def grow(form: Tree, found: dict[tuple[str, ...], Any], path: tuple[str, ...] = ()) -> Tree:
    """A tree of the branches of `form`, empty ones included, whose leaves are those of `found`, by path."""
    if not isinstance(form, dict):
        return found[path]
    return {name: grow(branch, found, (*path, name)) for name, branch in form.items()}


def form(filled: Tree) -> Tree:
    """The branches of a tree, with None for its leaves."""
    return apply(lambda leaf: None, filled)


def take(stack: Tree, ids: Tensor | slice | int) -> Tree:
    """Rows `ids` of every leaf."""
    return apply(lambda leaf: leaf[ids], stack)


def to(stack: Tree, device: torch.device) -> Tree:
    """Every leaf on `device`."""
    return apply(lambda leaf: leaf.to(device), stack)


def put(stack: Tree, ids: Tensor, rows: Tree) -> None:
    """Write `rows` at `ids`, in place: per-client memory must not cost a copy of all N clients a round."""
    apply(lambda leaf, new: leaf.index_copy_(0, ids.to(leaf.device), new.to(leaf)), stack, rows)


def spread(params: Tree, count: int) -> Tree:
    """`count` copies along a new leading axis, as views: nothing is copied."""
    return apply(lambda leaf: leaf.expand(count, *leaf.shape), params)


def is_spread(leaf: Tensor) -> bool:
    """Whether all rows are the same row in memory, as `spread` makes them."""
    return leaf.stride(0) == 0


def stack(models: list[Tree]) -> Tree:
    """Models of one shape along a new leading axis."""
    return apply(lambda *rows: torch.stack(rows), *models)


def choose(stack: Tree, ids: Tensor) -> Tree:
    """Rows `ids` of every leaf; a row that all share, as `spread` makes it, stays one in memory."""
    return apply(lambda leaf: leaf[: len(ids)] if is_spread(leaf) else leaf[ids], stack)


def join(stacks: list[Stack]) -> Stack:
    """Stacks one after another as one; a single one is returned as it is, not copied."""
    return stacks[0] if len(stacks) == 1 else apply(lambda *parts: torch.cat(parts), *stacks)


def length(stack: Tree) -> int:
    """Length of the leading axis: how many models a stack holds."""
    return len(next(leaf for _, leaf in leaves(stack)))


def unstack(stack: Tree) -> list[Tree]:
    """The models of a stack, as views."""
    return [take(stack, row) for row in range(length(stack))]


def rows(weights: Tensor, leaf: Tensor) -> Tensor:
    """`weights` [K] shaped so that it multiplies the rows of `leaf` [K, ...]."""
    return weights.to(leaf).view(-1, *[1] * (leaf.dim() - 1))


def mean(stack: Tree, weights: Tensor) -> Tree:
    """Mean over the leading axis, weighted by `weights` [K] (normalised here).

    A leaf of integers or truth values (a counter, a mask) has no mean in its own type: the first row's is taken.
    """
    if not stack:
        return {}
    share = weights.double() / weights.sum()  # integer weights would give single-precision shares
    share = share.to(next(leaf for _, leaf in leaves(stack)).device)  # once, not leaf by leaf

    def merged(leaf: Tensor) -> Tensor:
        exact = not (leaf.is_floating_point() or leaf.is_complex())
        return leaf[0].clone() if exact else torch.tensordot(share.to(leaf), leaf, 1)

    return apply(merged, stack)


def change(after: Tensor, before: Tensor) -> Tensor:
    """after - before; 0 where the two are equal, also of infinities, as in an attention's mask, whose difference is no
    number. Truth values, such as masks, have no difference, and cannot be trained: none of them changes."""
    return torch.zeros_like(after) if after.dtype == torch.bool else (after - before).masked_fill_(after == before, 0)


def squared_distance(first: Params, second: Params) -> Tensor:
    """Sum over all entries of (first - second)^2, over the names of `first`."""
    parts = [F.mse_loss(first[name], second[name], reduction="sum") for name in first]  # in fewer passes over memory
    return torch.stack(parts).sum()


def columns(*stacks: Stack) -> Iterator[list[Tensor]]:
    """All entries of stacks [K, ...] with the names of the first, in blocks: float64 [K, block size] of each stack.

    Thus sums over a model's entries are made in double precision without a copy of all K models.
    """
    for name in stacks[0]:
        for parts in zip(*(stack[name].reshape(length(stack), -1).split(_COLUMNS, 1) for stack in stacks)):
            yield [part.double() for part in parts]


def entries(params: Params) -> int:
    """How many entries one model has, d."""
    return sum(leaf.numel() for leaf in params.values())


def flat(params: Params) -> Tensor:
    """All entries of one model as one vector [d]."""
    return torch.cat([leaf.flatten() for leaf in params.values()])


def split(vector: Tensor, like: Params) -> Params:
    """The inverse of `flat`: a vector [d] as entries with the names and shapes of `like`."""
    parts = vector.split([leaf.numel() for leaf in like.values()])
    return {name: part.view(leaf.shape) for part, (name, leaf) in zip(parts, like.items())}


def size_in_bytes(tree: Tree) -> int:
    """Bytes of all leaves as if each row were its own (views over shared rows count in full)."""
    return sum(leaf.nbytes for _, leaf in leaves(tree))
