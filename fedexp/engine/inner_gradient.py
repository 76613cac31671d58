"""A gradient computed within a client's loss, on the same batch, at other weights than those being trained."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedexp.models.layers import aside
from fedexp.tree import Params

_Found = tuple[Tensor, tuple[Tensor, Params]]  # named here: torch.compile cannot trace tuple[...] within a function


def gradient(loss: Callable[[Params], Tensor], params: Params) -> tuple[Params, Tensor, Params]:
    """(gradient, value, running statistics) of `loss` at `params`, all of them detached.

    To be called from an algorithm's `loss`, for one client or a stack of them. Layers behave as in the surrounding
    pass, with the same dropout; the statistics that they would keep are only returned.
    """
    with aside() as now:
        if now.alone:  # one client: ordinary autograd, which can use the faster convolutions
            leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
            value = loss(leaves)
            found = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
            return dict(zip(leaves, found)), value.detach(), _constant(now.statistics)

    def one(params: Params) -> _Found:
        with aside() as now:
            value = loss(params)
        return value, (value.detach(), _constant(now.statistics))

    grads, (value, statistics) = torch.func.grad(one, has_aux=True)(_constant(params))
    return _constant(grads), value.detach(), _constant(statistics)


def _constant(params: Params) -> Params:
    return {name: value.detach() for name, value in params.items()}
