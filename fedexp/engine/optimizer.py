"""SGD and Adam as PyTorch's own functions, over lists of tensors: one model's, or a stack's rows."""

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedexp import tree
from fedexp.config.settings import Local
from fedexp.errors import require
from fedexp.tree import Params


class Optimizer:
    """Updates weights in place and elementwise, so that a Stack steps exactly like each of its models.

    fused: needs ordinary dense tensors, as a single client's are. lr: a tensor [] where the step is compiled, because
    every new number would compile it again. Raises ConfigError where there are no weights.
    """

    def __init__(self, weights: list[Tensor], local: Local, lr: float | Tensor, fused: bool) -> None:
        require(len(weights) > 0, "", "trains", "must name at least one of the entries that start returns")
        self.local, self.lr, self.fused = local, lr, fused
        slots = {"sgd": 1 if local.momentum else 0, "adam": 2}[local.optimizer]
        weights = [_as_it_lies(weight) for weight in weights] if fused else weights
        self.memory = [[torch.zeros_like(weight) for weight in weights] for _ in range(slots)]
        # Steps taken, for Adam's bias correction; on a GPU they are counted there, so that graphs can go on counting.
        self.on_gpu = weights[0].device.type == "cuda"
        self.taken = torch.zeros((), device=weights[0].device if self.on_gpu else None)

    @torch.no_grad()
    def step(self, weights: list[Tensor], grads: list[Tensor], active: int | None = None) -> None:
        """One step. active: only the first `active` rows of a stack take it (weights and grads are already those)."""
        if self.fused:
            grads = [_as_it_lies(_laid_out_as(weight, grad)) for weight, grad in zip(weights, grads)]
            weights = [_as_it_lies(weight) for weight in weights]
        memory = [[row if active is None else row[:active] for row in slot] for slot in self.memory]
        if self.local.optimizer == "adam":
            steps = [self.taken.clone() for _ in weights]
            self.taken.add_(1)
            adam(
                weights, grads, memory[0], memory[1], [], steps, foreach=True, fused=False, amsgrad=False,
                capturable=self.on_gpu, beta1=0.9, beta2=0.999, lr=self.lr, weight_decay=self.local.weight_decay,
                eps=1e-8, maximize=False,
            )  # fmt: skip
        else:
            # A zero buffer equals PyTorch's first step (buffer = gradient): 0.9 * 0 + g.
            sgd(
                weights, grads, list(memory[0]) if memory else [None] * len(weights),
                foreach=not self.fused, fused=self.fused, weight_decay=self.local.weight_decay,
                momentum=self.local.momentum, lr=self.lr, dampening=0.0, nesterov=False, maximize=False,
            )  # fmt: skip


def _laid_out_as(weight: Tensor, grad: Tensor) -> Tensor:
    """The gradient in its weight's memory format: PyTorch's fused kernels walk memory and ignore strides."""
    return grad if grad.stride() == weight.stride() else torch.empty_like(weight).copy_(grad)


def _as_it_lies(tensor: Tensor) -> Tensor:
    """A view with its dimensions in the order of memory: PyTorch's fused SGD copies a tensor that is in another."""
    return tensor if tensor.dim() != 4 or tensor.is_contiguous() else tensor.movedim(1, -1)


def clip(grads: Params, largest: float, stacked: bool, model: list[str]) -> Params:
    """Scale gradients to a norm of at most `largest`: of the model, or of each model of a stack.

    model: names of the model's own weights. Entries of other names belong to a second model and are scaled separately.
    """
    first = set(model)
    own, others = ({name: grads[name] for name in grads if (name in first) == mine} for mine in (True, False))
    return {**_scaled(own, largest, stacked), **_scaled(others, largest, stacked)}


def _scaled(grads: Params, largest: float, stacked: bool) -> Params:
    if not grads:
        return {}
    flat = [grad.reshape(len(grad), -1) if stacked else grad.flatten() for grad in grads.values()]
    norm = torch.stack([part.square().sum(-1) for part in flat]).sum(0).sqrt()
    scale = (largest / (norm + 1e-6)).clamp(max=1.0)
    return {name: grad * (tree.rows(scale, grad) if stacked else scale) for name, grad in grads.items()}
