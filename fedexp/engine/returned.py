"""Checks of what hooks return, made where it is taken: an error names its hook, and says what would be right.

Without them a wrong value would end in an error far from its hook, or in another result with one engine than with the
other.
"""

from collections.abc import Collection
from typing import Any, NoReturn

import torch
from torch import Tensor

from fedexp import tree
from fedexp.errors import ConfigError
from fedexp.tree import Params, Tree


def tensors(hook: str, given: Any, rows: int | None = None) -> Tree:
    """`given`, which must be nested dicts of tensors. rows: the length that the leading axis of each must have."""
    if not isinstance(given, dict):
        _refuse(hook, f"a dict of tensors by name, not {_kind(given)}")
    for path, leaf in tree.leaves(given):
        if not isinstance(leaf, Tensor):
            _refuse(hook, f"nested dicts of tensors; {'.'.join(map(str, path))} is {_kind(leaf)}")
        if rows is not None and leaf.shape[:1] != (rows,):
            _refuse(
                hook, f"a row for each of the {rows} clients (tree.spread gives all of them the same); "
                f"{'.'.join(map(str, path))} is {list(leaf.shape)}",
            )  # fmt: skip
    return given


def mapping(hook: str, given: Any) -> dict[str, Any]:
    """`given`, which must be a dict."""
    if not isinstance(given, dict):
        _refuse(hook, f"a dict, not {_kind(given)}")
    return given


def alike(hook: str, rows: list[Tree]) -> None:
    """Raise ConfigError unless the trees of several clients have the same names and shapes."""
    shapes = [{path: leaf.shape for path, leaf in tree.leaves(row)} for row in rows]
    for found in shapes[1:]:
        if found != shapes[0]:
            path = next(path for path in {**shapes[0], **found} if shapes[0].get(path) != found.get(path))
            first, other = (_shape(each.get(path)) for each in (shapes[0], found))
            _refuse(hook, f"the same names and shapes for every client; {'.'.join(path)} is {first} and {other}")


def loss(given: Any) -> Tensor:
    """The loss of one batch, a tensor [] that depends on the weights."""
    if torch.compiler.is_compiling():
        return given
    if not isinstance(given, Tensor):
        _refuse("loss", f"a tensor [], not {_kind(given)}")
    if given.dim():
        _refuse("loss", f"a tensor [], such as batch.mean(values); it is {list(given.shape)}")
    if not given.requires_grad:
        _refuse("loss", "a tensor that depends on the weights in params; this one has no gradient")
    return given


def corrected(grads: Params, given: Any) -> Params:
    """What `correct` makes of the gradients, in their names and shapes."""
    if given is grads or torch.compiler.is_compiling():
        return given
    if not isinstance(given, dict):
        _refuse("correct", f"the gradients, a dict of tensors by name, not {_kind(given)}")
    for name in {**grads, **given}:
        right, found = grads.get(name), given.get(name)
        if right is None or not isinstance(found, Tensor) or found.shape != right.shape:
            told = "missing" if name not in given else f"{_kind(found)}, not {_kind(right)}"
            told = "none of them" if right is None else told
            _refuse("correct", f"the gradients in their names and shapes; {name} is {told}")
    return given


def names(hook: str, given: Any) -> Collection[str]:
    """Names of entries."""
    if isinstance(given, str) or not isinstance(given, Collection):
        _refuse(hook, f"a list of names, not {_kind(given)}")
    return given


def ids(given: Any, clients: int) -> Tensor:
    """The clients that `select` draws among `clients`."""
    if not isinstance(given, Tensor):
        _refuse("select", f"the clients' ids as a tensor, int64 [K], not {_kind(given)}")
    if given.dtype != torch.int64 or given.dim() != 1:
        _refuse("select", f"the clients' ids, int64 [K]; it is {_kind(given)}")
    if len(given) and (int(given.min()) < 0 or int(given.max()) >= clients):
        _refuse("select", f"ids from 0 to {clients - 1}; it gave {given.tolist()}")
    return given


def first_state(given: Any) -> dict[str, Any]:
    """The State that `init` returns, with the global model."""
    if not isinstance(given, dict) or not isinstance(given.get("params"), dict):
        _refuse("init", 'the server\'s memory, a dict with the global model as "params": {"params": params, ...}')
    return given


def combined(params: Params, given: Any) -> Params:
    """What `combine` makes of the cohort's updates: changes of the model `params`."""
    for name, change in tensors("combine", given).items():
        old = params.get(name)
        if old is None or not isinstance(change, Tensor) or change.shape != old.shape:
            told = "none of its entries" if old is None else f"{_kind(change)}, not {_kind(old)}"
            _refuse("combine", f"one change of the model, without the clients' axis; {name} is {told}")
    return given


def state(given: Any, needed: Collection[str]) -> dict[str, Any]:
    """The State that `aggregate` returns, with all that rounds need."""
    whole = "the whole State: {**state, ...}"
    if not isinstance(given, dict):
        _refuse("aggregate", f"{whole}, not {_kind(given)}")
    if missing := [name for name in needed if name not in given]:
        _refuse("aggregate", f"{whole}; it lacks {', '.join(missing)}")
    return given


def logits(given: Any, examples: int, classes: int) -> Tensor:
    """What `predict` returns for a batch of examples."""
    if not isinstance(given, Tensor) or list(given.shape) != [examples, classes]:
        _refuse("predict", f"logits {[examples, classes]} for {examples} examples; it gave {_kind(given)}")
    return given


def _refuse(hook: str, right: str) -> NoReturn:
    raise ConfigError("", hook, f"must return {right}")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if value is None:
        return "None (is a return missing?)"
    return f"{value} ({type(value).__name__})" if isinstance(value, int | float) else f"a {type(value).__name__}"


def _shape(shape: torch.Size | None) -> str:
    return "missing" if shape is None else str(list(shape))
