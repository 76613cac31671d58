"""Trying out a model that a user wrote: it must train here exactly as it does in an ordinary PyTorch loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.errors import require
from fedexp.models.classifier import Model
from fedexp.models.layers import Dropout, training
from fedexp.tree import Params

_CLOSE = 0.01  # relative to the larger norm; both compute the same, but for the rounding of other kernels
_NOISE = 1e-4  # relative to all gradients: that of a bias before batch normalisation is nothing but rounding


class _Step(NamedTuple):
    """One batch: examples as they are after it, logits [n, C], gradients, the weights that none reaches, all entries
    afterwards, and a kind of layer that was called again in the backward pass."""

    given: Tensor
    logits: Tensor
    grads: Params
    unused: list[str]
    after: Params
    again: str = ""


def compare(model: Model, plain: nn.Module, x: Tensor, target: str) -> list[str]:
    """The names of weights that no gradient of the loss reaches.

    plain: a copy, of ordinary layers, of the net that `model` was made of; its entries are changed. x: examples
    [n, ...], prepared. Both take one batch, without dropout, at weights other than the net's first. Raises ConfigError
    of `target`, the model's constructor, where what they find differs, or where the model draws random numbers of its
    own, or changes its input or its entries.
    """
    values = {name: leaf.to(x.device) for name, leaf in model.params().items()}
    values |= {name: values[name] * 1.1 + 0.01 for name in model.weights}
    with _without_dropout(model.net):
        ours, again = _here(model, values, x), _here(model, values, x)
    theirs, key = _ordinary(plain.to(x.device), values, x, model.weights), "model._target_"
    require(
        torch.equal(ours.given, x), key, target,
        "changes its input in place, which others may read after it; let it work on a copy",
    )  # fmt: skip
    require(
        not _differ(ours.logits, again.logits), key, target,
        "gives other logits when it is called again with the same weights and examples: it must not draw random "
        "numbers of its own (nn.Dropout may) or remember earlier calls",
    )  # fmt: skip
    right = f"computes {ours.again} again in the backward pass (torch.utils.checkpoint), which is not supported"
    require(not ours.again, key, target, right)
    statistics, after = model.statistics, theirs.after
    changed = [name for name in values if name not in statistics and not torch.equal(after[name], values[name])]
    right = f"changes {', '.join(changed)} as it is called, which only batch normalisation may do here"
    require(not changed, key, target, right)
    apart = _NOISE * sum(float(grad.square().sum()) for grad in theirs.grads.values()) ** 0.5
    unlike = [name for name in statistics if _differ(ours.after[name], after[name])]
    unlike += [f"the gradient of {name}" for name, g in theirs.grads.items() if _differ(ours.grads[name], g, apart)]
    unlike += ["logits"] * _differ(ours.logits, theirs.logits)
    require(
        not unlike, key, target,
        f"trains otherwise here than in an ordinary PyTorch loop, which finds other values of: {', '.join(unlike)}; "
        "weights must be used from where they are registered, not from a list or a closure",
    )  # fmt: skip
    return theirs.unused


def _here(model: Model, values: Params, x: Tensor) -> _Step:
    """The step as a client takes it. A layer called again in the backward pass would have other weights and dropout
    than in the forward pass."""
    params = {name: leaf.clone().requires_grad_(name in model.weights) for name, leaf in values.items()}
    given, calls = x.clone(), []
    hooks = [layer.register_forward_pre_hook(lambda layer, _: calls.append(layer)) for layer in model.net.modules()]
    try:
        with training(None, torch.zeros((), dtype=torch.int64, device=x.device), alone=True) as now:
            logits = model(params, given)
        forward = len(calls)
        found = _gradients(logits, {name: params[name] for name in model.weights})
    finally:
        for hook in hooks:
            hook.remove()
    again = "" if len(calls) == forward else type(calls[-1]).__name__
    return _Step(given, logits.detach(), *found, {**params, **now.statistics}, again)


def _ordinary(net: nn.Module, values: Params, x: Tensor, weights: list[str]) -> _Step:
    """The same of the net itself, as PyTorch runs it. Only its batch normalisation is in training mode, as in a
    Model's: dropout would differ."""
    net.train()
    kind = nn.modules.batchnorm._BatchNorm
    normalising = [layer for layer in net.modules() if isinstance(layer, kind) and layer.training]
    net.eval()
    for layer in normalising:
        layer.train()
    own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)
    given = x.clone()
    logits = net(given)
    after = {**own, **dict(net.named_buffers())}  # a forward may have put others in their places
    return _Step(given, logits.detach(), *_gradients(logits, {name: own[name] for name in weights}), after)


def _gradients(logits: Tensor, weights: Params) -> tuple[Params, list[str]]:
    """Those of the loss for made-up labels, zeros where none reaches a weight, and the names of such weights."""
    loss = F.cross_entropy(logits, torch.arange(len(logits), device=logits.device) % logits.shape[1])
    found = dict(zip(weights, torch.autograd.grad(loss, list(weights.values()), allow_unused=True)))
    unused = [name for name, grad in found.items() if grad is None]
    return {name: torch.zeros_like(weights[name]) if g is None else g for name, g in found.items()}, unused


def _differ(first: Tensor, second: Tensor, apart: float = 0.0) -> bool:
    """Whether two tensors differ by more than rounding and by more than `apart`. NaN differs from nothing."""
    if not first.is_floating_point():
        return not torch.equal(first, second)
    return float((first - second).norm()) > _CLOSE * max(float(first.norm()), float(second.norm())) + apart


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
