"""Checks of what hooks return, made where it is taken: an error names its hook, and says what would be right.

Without them a wrong value would end in an error far from its hook, or in another result with one engine than with the
other.
"""

from collections.abc import Collection, Sized
from typing import Any, NoReturn

import torch
from torch import Tensor

from fedexp import tree
from fedexp.errors import ConfigError
from fedexp.tree import Params, Stack, Tree

Versions = dict[tuple[Any, ...], tuple[Any, int]]
TRAINED = "the trained weights, params,"  # which client hooks read, and must not change


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


def other_names(hook: str, earlier: str, before: Tree, given: Tree) -> Tree:
    """`given`, which must have no names of `before`, which the hook `earlier` returned."""
    if taken := ", ".join(map(str, before.keys() & given.keys())):
        _refuse(hook, f"other names than {earlier} does, since client.found holds both: {taken}")
    return given


def mapping(hook: str, given: Any) -> dict[str, Any]:
    """`given`, which must be a dict."""
    if not isinstance(given, dict):
        _refuse(hook, f"a dict, not {_kind(given)}")
    return given


def alike(hook: str, rows: list[Tree]) -> None:
    """Raise ConfigError unless the trees of several clients have the same names, shapes and types."""
    forms = [{path: (leaf.shape, leaf.dtype) for path, leaf in tree.leaves(row)} for row in rows]
    for found in forms[1:]:
        if found != forms[0]:
            path = next(path for path in {**forms[0], **found} if forms[0].get(path) != found.get(path))
            number = forms.index(found)
            first, other = (_kind(dict(tree.leaves(rows[row])).get(path, "missing")) for row in (0, number))
            name = ".".join(map(str, path))
            _refuse(hook, f"the same names, shapes and types for every client; {name} is {first} and {other}")


def same_form(hook: str, what: str, like: Params, given: Any) -> Params:
    """`given`, which must have the names, shapes and types of `like`. what: what it is, in words."""
    if not isinstance(given, dict):
        _refuse(hook, f"{what}, a dict of tensors by name, not {_kind(given)}")
    for name in {**like, **given}:
        right, found = like.get(name), given.get(name)
        fits = right is not None and isinstance(found, Tensor)
        if not fits or found.shape != right.shape or found.dtype != right.dtype:
            told = "missing" if name not in given else f"{_kind(found)}, not {_kind(right)}"
            told = "none of them" if right is None else told
            _refuse(hook, f"{what} in their names, shapes and types; {name} is {told}")
    return given


def pair(hook: str, what: str, given: Any) -> tuple[Any, Any]:
    """`given`, which must be a tuple of two. what: what they are, in words."""
    if not isinstance(given, tuple) or len(given) != 2:
        _refuse(hook, f"a pair, ({what}), not {_kind(given)}")
    return given


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


def gradient(given: tuple[Tensor | None, ...], weights: list[Tensor]) -> list[Tensor]:
    """A loss's gradient: 0 for weights on which it does not depend, which must not be all of them."""
    if weights and all(each is None for each in given):
        _refuse("loss", "a tensor that depends on the weights in params; this one has no gradient")
    return [torch.zeros_like(weight) if each is None else each for each, weight in zip(given, weights)]


def loss_without_padding(ignored: Tensor) -> None:
    """Raise ConfigError unless losses were seen to ignore padding: bool []."""
    if not ignored:
        _refuse(
            "loss", "a mean over the examples that count, by batch.mean(values) or batch.cross_entropy(logits), not "
            "by .mean() or F.cross_entropy, and a model must compute each example by itself; this loss depends on the "
            "padding of batches where clients train at once",
        )  # fmt: skip


def loss_without_global_generators(untouched: bool) -> None:
    """Raise ConfigError unless a step of all clients at once left the global generators untouched."""
    if not untouched:
        right = (
            "must not draw from Python's or NumPy's global generator where clients train at once, since all of them "
            "would get the same numbers; draw from batch.key (fedexp.randomness), or use hardware.engine=workers"
        )
        raise ConfigError("", "loss", right)


def corrected(grads: Params, given: Any) -> Params:
    """What `correct` makes of the gradients."""
    if torch.compiler.is_compiling():
        return given
    if isinstance(given, dict) and given.keys() == grads.keys() and all(given[name] is grads[name] for name in grads):
        return given
    return same_form("correct", "the gradients", grads, given)


def passes(given: Any, algorithm: Any) -> list[Any]:
    """A client's training passes, of which exactly one is the algorithm's own."""
    own = given if isinstance(given, list | tuple) else []
    if sum(getattr(each, "functions", None) is algorithm for each in own) != 1:
        _refuse("passes", "a list of Pass, of which exactly one is the algorithm's own: Pass(self, local)")
    return list(given)


def trained(given: Any, start: Params, model: Collection[str]) -> list[str]:
    """The names that `trains` returns, as far as `start` has them. model: the names of the model's weights."""
    if isinstance(given, str) or not isinstance(given, Collection):
        _refuse("trains", f"a list of names, not {_kind(given)}")
    if unknown := [str(name) for name in given if name not in start and name not in model]:
        _refuse("trains", f"names of entries of start or of the model; there is no {', '.join(unknown)}")
    return [name for name in given if name in start]


def upload(given: Any) -> Tree:
    """What ONE client uploads."""
    tensors("upload", given)
    if not isinstance(given.get("update", {}), dict):
        _refuse("upload", f'a dict of tensors by name as "update", not {_kind(given["update"])}')
    if taken := ", ".join(sorted({"privacy", "selection"} & {*given})):
        _refuse("upload", f"other names than {taken}, under which parts upload what they need")
    return given


def ids(given: Any, count: int, hook: str = "select", what: str = "the clients' ids") -> Tensor:
    """Numbers from 0 to `count` - 1: clients that are drawn, or positions among these."""
    if not isinstance(given, Tensor):
        _refuse(hook, f"{what} as a tensor, int64 [K], not {_kind(given)}")
    if given.dtype != torch.int64 or given.dim() != 1:
        _refuse(hook, f"{what}, int64 [K]; it is {_kind(given)}")
    if len(given) and (int(given.min()) < 0 or int(given.max()) >= count):
        _refuse(hook, f"{what}, from 0 to {count - 1}; it gave {given.tolist()}")
    return given


def weights(hook: str, given: Any, count: int) -> Tensor:
    """The weights of `count` updates in their mean."""
    if not isinstance(given, Tensor) or list(given.shape) != [count]:
        _refuse(hook, f"a weight for each of the {count} clients, a tensor [{count}], not {_kind(given)}")
    if not (bool((given >= 0).all()) and 0 < float(given.sum()) < torch.inf):
        _refuse(hook, f"weights of at least 0, not all 0; it gave {given.tolist()}")
    return given


def work(given: Any, count: int) -> Tensor | None:
    """What `system.work` says that each of `count` clients can do."""
    whole = isinstance(given, Tensor) and given.dtype == torch.int64 and list(given.shape) == [count]
    if given is not None and not (whole and bool((given >= 0).all())):
        told = f"{given.tolist()}" if whole else _kind(given)
        _refuse("system.work", f"None, or epochs or steps of at least 0, int64 [{count}]; it gave {told}")
    return given


def answers(given: Any, count: int) -> tuple[Tensor, float]:
    """Which of `count` clients answer in time, and the round's seconds."""
    what = f"bool [{count}], seconds"
    in_time, seconds = pair("answers", what, given)
    fits = isinstance(in_time, Tensor) and in_time.dtype == torch.bool and list(in_time.shape) == [count]
    if not fits or not isinstance(seconds, int | float):
        _refuse("answers", f"a pair, ({what}); it gave {_kind(in_time)} and {_kind(seconds)}")
    return given


def first_state(given: Any) -> dict[str, Any]:
    """The State that `init` returns, with the global model."""
    if not isinstance(given, dict) or not isinstance(given.get("params"), dict):
        _refuse("init", 'the server\'s memory, a dict with the global model as "params": {"params": params, ...}')
    return given


def combined(params: Params, given: Any) -> Params:
    """What `combine` makes of the cohort's updates: changes of the model `params`, or of some of its entries."""
    like = {name: params[name] for name in tensors("combine", given) if name in params}
    return same_form("combine", "changes of the model's entries, without the clients' axis,", like, given)


def state(hook: str, given: Any, needed: Collection[str], model: Params | None = None) -> dict[str, Any]:
    """The State that `aggregate` or `enter` returns, with all that rounds need. model: the global model as it was, if
    the State has a single one: its form must not change."""
    whole = "the whole State: {**state, ...}"
    if not isinstance(given, dict):
        _refuse(hook, f"{whole}, not {_kind(given)}")
    if missing := [name for name in needed if name not in given]:
        _refuse(hook, f"{whole}; it lacks {', '.join(missing)}")
    tensors(hook, {"params": given["params"]})
    if model is not None:
        same_form(hook, 'the State, with the global model as "params"', model, given["params"])
    return given


def stack(hook: str, right: str, like: Stack, given: Any) -> Stack:
    """Models [K, ...], which must have all entries of `like`, the cohort's updates, in their shapes."""
    for name, change in like.items():
        found = given.get(name) if isinstance(given, dict) else None
        if not isinstance(found, Tensor) or found.shape != change.shape:
            told = list(found.shape) if isinstance(found, Tensor) else "missing"
            told = f"{name} is {told}, and in update {list(change.shape)}" if isinstance(given, dict) else _kind(given)
            raise ConfigError("", hook, f"{right}: {told}")
    return given


def one_model(hook: str, given: Any, model: Params) -> Params:
    """A model that ONE client trains from or uses: all entries of the net, `model`, in their form, and perhaps
    others."""
    own = {name: leaf for name, leaf in tensors(hook, given).items() if name in model}
    same_form(hook, "all of the model's entries", model, own)
    return given


def versions(given: Tree) -> Versions:
    """Each leaf by its path, with how often it has been changed in place so far, or with its length."""
    return {path: (leaf, _version(leaf)) for path, leaf in tree.leaves(given)}


def unchanged(hook: str, what: str, given: Tree, before: Versions) -> None:
    """Raise ConfigError where leaves have been changed in place, replaced, added or removed since `versions` gave
    `before`."""
    after = dict(tree.leaves(given))
    for path in {**before, **after}:
        leaf, version = before.get(path, (None, 0))
        if path not in before or after.get(path) is not leaf or _version(leaf) != version:
            right = f"must not change {what} in place, which others read after it; work on a copy"
            raise ConfigError("", hook, f"{right} ({'.'.join(map(str, path))} was changed)")


def _version(leaf: Any) -> int:
    return leaf._version if isinstance(leaf, Tensor) else len(leaf) if isinstance(leaf, Sized) else 0


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
