"""Trying out a model that a user wrote: it must train here exactly as it does in an ordinary PyTorch loop."""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.errors import ConfigError, require
from fedexp.models.classifier import Model
from fedexp.models.layers import Dropout, training
from fedexp.randomness import seeded
from fedexp.tree import Params

_KEY = "model._target_"
# How far results may lie apart that differ by rounding alone, relative to the larger one; and how far gradients may,
# relative to all of them together: that of a bias before batch normalisation is nothing but rounding.
_CLOSE, _NOISE = {torch.float64: 1e-6}, {torch.float64: 1e-9}
_DROPOUTS = nn.modules.dropout._DropoutNd
# What a Model has in training mode; on a GPU recurrent layers can be differentiated in no other.
_TRAINING = (nn.modules.batchnorm._BatchNorm, nn.RNNBase)


class Remarks(NamedTuple):
    """What a user should know of a model: the weights that no gradient of the loss reaches, and whether it does
    something else where self.training holds, which it never does here."""

    unused: list[str]
    asks: bool


class _Step(NamedTuple):
    """One batch: examples as they are after it, logits [n, C], gradients, the weights that none reaches, all entries
    afterwards, and a kind of layer that was called again in the backward pass."""

    given: Tensor
    logits: Tensor
    grads: Params
    unused: list[str]
    after: Params
    again: str = ""


def compare(model: Model, plain: nn.Module, x: Tensor, target: str) -> Remarks:
    """Take one batch as a client does and as an ordinary loop does, without dropout, at weights other than the net's
    first.

    plain: a second net of ordinary layers, made as the one in `model` was; its entries are changed. x: examples
    [n, ...], prepared. Raises ConfigError of `target`, the model's constructor, where the two find different things, or
    where the model draws random numbers of its own, or changes its input or its entries.
    """
    names = [{name for name, _ in (*net.named_parameters(), *net.named_buffers())} for net in (model.net, plain)]
    right = "names its weights otherwise when it is constructed again; names must not depend on earlier calls"
    require(names[0] <= names[1], _KEY, target, right)  # batches are counted by ordinary normalisation alone
    with _eager():
        return _in_double(model, plain, x, target)


def share(nets: Sequence[nn.Module]) -> bool:
    """Whether some of these nets have a layer or a weight in common."""
    parts = [{*map(id, net.modules()), *map(id, net.parameters())} for net in nets]
    return len(set[int]().union(*parts)) < sum(map(len, parts))


def _eager() -> AbstractContextManager[Any]:
    """Within this block models that were compiled run as they are written: their hooks cannot be compiled."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _in_double(model: Model, plain: nn.Module, x: Tensor, target: str) -> Remarks:
    try:  # in double precision rounding can hide nothing, and cannot grow in deep nets to what looks like a difference
        return _compared(model, plain, x, torch.float64, target)
    except ConfigError:
        raise
    except Exception:  # it mixes types, or an operation lacks double precision
        return _compared(model, plain, x, model.own[model.weights[0]].dtype, target)


def vectorize(model: Model, x: Tensor) -> None:
    """Take the gradient of a stack of one model. Raises what PyTorch does for a model that cannot be vectorized."""
    stack = {name: leaf[None].to(x.device) for name, leaf in model.params().items()}
    weights = {name: stack[name] for name in model.weights}
    key = torch.zeros(1, dtype=torch.int64, device=x.device)

    def loss(weights: Params, buffers: Params, x: Tensor, key: Tensor) -> Tensor:
        with training(None, key):
            return _loss(model({**weights, **buffers}, x))

    buffers = {name: leaf for name, leaf in stack.items() if name not in weights}
    torch.vmap(torch.func.grad(loss))(weights, buffers, x[None], key)


def _compared(model: Model, plain: nn.Module, x: Tensor, dtype: torch.dtype, target: str) -> Remarks:
    x = x.to(dtype) if x.is_floating_point() else x
    values = {
        name: leaf.to(x.device, dtype if leaf.is_floating_point() else None) for name, leaf in model.params().items()
    }
    values |= {name: values[name] * 1.1 + 0.01 for name in model.weights}
    with _without_dropout(model.net):
        ours = _here(model, values, x)
        _check_alone(model, values, x, ours, target)
    plain.to(x.device, dtype)
    theirs = _ordinary(plain, values, x, model.weights, others_train=True)
    asks = theirs is None or bool(_unlike(model, ours, theirs, values))
    if theirs is None or asks:  # it may do something else where self.training holds
        theirs = _ordinary(plain, values, x, model.weights, others_train=False)
    entries = {name: leaf for name, leaf in values.items() if name not in model.statistics}
    changed = [name for name, before in entries.items() if _changed(before, theirs.after[name])]
    right = f"changes {_some(changed)} as it is called, which only batch normalisation may do here"
    require(not changed, _KEY, target, right)
    unlike = _unlike(model, ours, theirs, values)
    require(
        not unlike, _KEY, target,
        f"trains otherwise here than in an ordinary PyTorch loop, which finds another value of {_some(unlike)}; is a "
        "weight, for instance, used from elsewhere than where it is registered, such as a list?",
    )  # fmt: skip
    return Remarks(theirs.unused, asks)


def _check_alone(model: Model, values: Params, x: Tensor, ours: _Step, target: str) -> None:
    """Check what shows without the ordinary loop."""
    with seeded(1), training(None, torch.zeros((), dtype=torch.int64, device=x.device), alone=True), torch.no_grad():
        again = model({name: leaf.clone() for name, leaf in values.items()}, x.clone())
        parts = model.head(values, model.encode(values, x.clone())) if model.splits else again
    right = "changes its input in place, which others may read after it; let it work on a copy"
    require(torch.equal(ours.given, x), _KEY, target, right)
    require(
        not _differ(ours.logits, again), _KEY, target,
        "gives other logits when it is called again with the same weights and examples: it must not draw random "
        "numbers of its own (nn.Dropout may) or remember earlier calls",
    )  # fmt: skip
    right = f"computes {ours.again} again in the backward pass (torch.utils.checkpoint), which is not supported"
    require(not ours.again, _KEY, target, right)
    right = "is a Classifier, whose forward must be its head after its encoder; use an nn.Module with any other"
    require(not _differ(again, parts), _KEY, target, right)


def _here(model: Model, values: Params, x: Tensor) -> _Step:
    """The step as a client takes it. A layer called again in the backward pass would have other weights and dropout
    than in the forward pass."""
    params = {name: leaf.clone().requires_grad_(name in model.weights) for name, leaf in values.items()}
    given, calls = x.clone(), []
    hooks = [layer.register_forward_pre_hook(lambda layer, _: calls.append(layer)) for layer in model.net.modules()]
    try:
        with seeded(0):
            with training(None, torch.zeros((), dtype=torch.int64, device=x.device), alone=True) as now:
                logits = model(params, given)
            forward = len(calls)
            found = _gradients(logits, {name: params[name] for name in model.weights})
    finally:
        for hook in hooks:
            hook.remove()
    again = "" if len(calls) == forward else type(calls[-1]).__name__
    return _Step(given, logits.detach(), *found, {**params, **now.statistics}, again)


def _ordinary(net: nn.Module, values: Params, x: Tensor, weights: list[str], others_train: bool) -> _Step | None:
    """The same of the net itself, as PyTorch runs it; its dropout is in evaluation mode. others_train: all other layers
    are in training mode, too; None where the net cannot be used so, or draws random numbers then."""
    net.train()
    still = [each for each in net.modules() if isinstance(each, _DROPOUTS)]
    active = [each for each in net.modules() if isinstance(each, _TRAINING) and each.training]
    if not others_train:
        net.eval()
    for layers, mode in ((still, False), (active, True)):
        for layer in layers:
            layer.train(mode)
    own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)
    given = x.clone()
    with seeded(0, held=True):
        before = _generators()
        try:
            logits = net(given)
            found = _gradients(logits, {name: own[name] for name in weights})
        except Exception:
            if others_train:
                return None
            raise
        if others_train and _generators() != before:  # of which this batch may show nothing
            return None
    after = {**own, **dict(net.named_buffers())}  # a forward may have put others in their places
    return _Step(given, logits.detach(), *found, after)


def _generators() -> tuple[Any, ...]:
    """The states of the global random generators."""
    numpy_s: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    return random.getstate(), str(numpy_s["state"]["pos"]), torch.get_rng_state().numpy().tobytes()


def _gradients(logits: Tensor, weights: Params) -> tuple[Params, list[str]]:
    """Those of the loss, zeros where none reaches a weight, and the names of such weights."""
    found = dict(zip(weights, torch.autograd.grad(_loss(logits), list(weights.values()), allow_unused=True)))
    unused = [name for name, grad in found.items() if grad is None]
    return {name: torch.zeros_like(weights[name]) if g is None else g for name, g in found.items()}, unused


def _loss(logits: Tensor) -> Tensor:
    """That of made-up labels."""
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device) % logits.shape[1])


def _unlike(model: Model, ours: _Step, theirs: _Step, values: Params) -> list[str]:
    """What differs between two steps."""
    whole = sum(float(grad.square().sum()) for grad in theirs.grads.values()) ** 0.5
    found = ["the logits"] * _differ(ours.logits, theirs.logits)
    for name, grad in theirs.grads.items():
        if (name in ours.unused) != (name in theirs.unused) or _differ(ours.grads[name], grad, whole):
            found.append(f"the gradient of {name}")
    for name in values:
        if name in model.statistics:
            found += [name] * _differ(ours.after[name], theirs.after[name])
        else:
            found += [name] * _changed(ours.after[name], theirs.after[name])
    return found


def _differ(first: Tensor, second: Tensor, whole: float = 0.0) -> bool:
    """Whether two tensors differ by more than rounding. whole: the norm of all gradients. NaN differs from nothing."""
    if not first.is_floating_point():
        return not torch.equal(first, second)
    close, noise = _CLOSE.get(first.dtype, 1e-2), _NOISE.get(first.dtype, 1e-4)
    return float((first - second).norm()) > close * max(float(first.norm()), float(second.norm())) + noise * whole


def _changed(before: Tensor, after: Tensor) -> bool:
    """Whether an entry is another one. NaN equals NaN."""
    return before.shape != after.shape or not torch.allclose(before, after, rtol=0, atol=0, equal_nan=True)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


@contextmanager
def _without_dropout(net: nn.Module) -> Iterator[None]:
    layers = [each for each in net.modules() if isinstance(each, Dropout) and not each.always_evaluates]
    for layer in layers:
        layer.always_evaluates = True
    try:
        yield
    finally:
        for layer in layers:
            layer.always_evaluates = False
