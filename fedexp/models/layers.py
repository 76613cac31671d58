"""BatchNorm, Dropout, LSTM and GRU as pure functions, so that a vectorized cohort trains like a client alone;
convolutions and max-pooling in the form that CPUs compute fast.

Ordinary layers change buffers in place and draw from a global generator. These layers read the current training
pass instead: the weights of the batch's examples (0 for padding), the key from which noise is drawn, and the
place where new running statistics are put for the engine to keep.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from threading import local
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from fedexp.errors import ConfigError
from fedexp.models import convolution, pooling, recurrent
from fedexp.randomness import uniform

_BETWEEN_USES = 0x9E3779B1  # between the keys of two uses of a dropout; keys of two steps differ by 1
STACKED = 1  # in the place of a tile's side: a stack's convolution in the form of fedexp.models.stacked


@dataclass
class TrainingPass:
    """One client's forward passes on one batch: weight [B], 0 for padding, or None (no padding); key [] int64.

    alone: the client trains by itself, not as a row of a stack, so that memory formats can be chosen.
    tiles: the tiles' side for each convolution, by path, that is computed in tiles (fedexp.models.convolution), or
    STACKED.
    statistics: new running statistics, by name. within: those of the present call of a model, and how often each
    dropout has been used in it.
    """

    weight: Tensor | None
    key: Tensor
    alone: bool = False
    tiles: Mapping[str, int] = field(default_factory=dict)
    statistics: dict[str, Tensor] = field(default_factory=dict)
    within: dict[str | int, Any] = field(default_factory=dict)


class _Current(local):
    """The current pass of this thread. Not a ContextVar, which torch.compile cannot trace."""

    training: TrainingPass | None = None


_current = _Current()


@contextmanager
def _within(now: TrainingPass | None) -> Iterator[Any]:
    before, _current.training = _current.training, now
    try:
        yield now
    finally:
        _current.training = before


def training(
    weight: Tensor | None, key: Tensor, alone: bool = False, tiles: Mapping[str, int] | None = None
) -> AbstractContextManager[TrainingPass]:
    """Within this block layers are in training mode: they use batch statistics and dropout."""
    return _within(TrainingPass(weight, key, alone, tiles or {}))


def frozen() -> AbstractContextManager[None]:
    """Within this block layers are in evaluation mode, even in a training pass (a teacher, a frozen encoder)."""
    return _within(None)


def begin_call() -> None:
    """To be called before a model is: layers that it uses twice tell these uses apart."""
    if _current.training is not None:
        _current.training.within.clear()


def aside() -> AbstractContextManager[TrainingPass]:
    """Within this block layers train as in the surrounding pass, but new running statistics are kept separately."""
    return _within(replace(_current.training, statistics={}))


def keep(values: dict[str, Tensor]) -> None:
    """To be called within a client's loss: set new values, by name, of entries of `params` that are not trained.

    They hold from the client's next step on, as new running statistics do. Algorithms use them to carry values from
    step to step.
    """
    _current.training.statistics.update(values)


def _is_transformed() -> bool:
    """Whether a loss's own torch.func.grad or forward-mode derivative is at work, for which own forms have no rule."""
    return bool(torch._C._are_functorch_transforms_active()) or forward_ad._current_level >= 0


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation over dim 1 with PyTorch's statistics (by default momentum 0.1; unbiased running variance)."""

    path = ""  # its place in the net
    always_evaluates = False  # as where the net's own `train` leaves it in evaluation mode

    def forward(self, x: Tensor) -> Tensor:
        now = None if self.always_evaluates else _current.training
        if now is None:
            like = x.to(self.weight.dtype)  # autocast's bfloat16: vectorized, mixed types are not allowed
            y = F.batch_norm(like, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
            return y.to(x.dtype)
        if now.weight is not None and len(now.weight) != len(x):
            right = (
                f"pads batches, and {self.path} normalises other rows than these examples; use hardware.engine=workers"
            )
            raise ConfigError("hardware.engine", "vectorized", right)
        if not now.alone:
            x = x.to(self.weight.dtype)  # autocast's bfloat16: the vectorized backward allows no mixed types
        # PyTorch's own form gives no number for the variance of a single value, and a wrong gradient of a derivative
        # that was taken in forward mode.
        if now.weight is None and x.numel() > x.shape[1] and forward_ad._current_level < 0:
            mean, variance = (each.clone() for each in self._running(now))
            y, _, _ = torch.native_batch_norm(x, self.weight, self.bias, mean, variance, True, self.momentum, self.eps)
        else:
            given, x = x.dtype, x.to(self.weight.dtype)  # in bfloat16 sums and statistics would be rounded
            y, mean, variance = self._weighted(x, x.new_ones(len(x)) if now.weight is None else now.weight, now)
            y = y.to(given)
        found = {f"{self.path}.running_mean": mean.detach(), f"{self.path}.running_var": variance.detach()}
        now.statistics |= found
        now.within.update(found)
        return y

    def _running(self, now: TrainingPass) -> tuple[Tensor, Tensor]:
        """The running mean and variance as an earlier use of this layer in the same call, if any, left them."""
        mean, variance = now.within.get(f"{self.path}.running_mean"), now.within.get(f"{self.path}.running_var")
        return (self.running_mean, self.running_var) if mean is None else (mean, variance)

    def _weighted(self, x: Tensor, weight: Tensor, now: TrainingPass) -> tuple[Tensor, Tensor, Tensor]:
        """The same over the real examples alone (weight > 0): output, and running mean and variance after it."""
        real = (weight > 0).to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        over = [d for d in range(x.dim()) if d != 1]
        shape = (1, -1, *[1] * (x.dim() - 2))
        count = real.sum() * (x[0, 0].numel())
        mean = (x * real).sum(over) / count
        centred = x - mean.view(shape)
        variance = (centred.square() * real).sum(over) / count
        scale = self.weight * (variance + self.eps).rsqrt()
        y = centred * scale.view(shape) + self.bias.view(shape)
        unbiased = variance * (count / (count - 1).clamp_min(1))
        before_mean, before_variance = self._running(now)
        return y, self._after(before_mean, mean), self._after(before_variance, unbiased)

    def _after(self, running: Tensor, new: Tensor) -> Tensor:
        return running + self.momentum * (new.to(running.dtype) - running)


class Dropout(nn.modules.dropout._DropoutNd):
    """Zero each entry (or, with `channels`, each whole channel) with probability p; rescale the rest."""

    channels = False
    stream = 0  # of its noise, which differs from that of the net's other dropouts
    always_evaluates = False  # as in BatchNorm

    def forward(self, x: Tensor) -> Tensor:
        now = None if self.always_evaluates else _current.training
        if now is None or self.p == 0:
            return x
        kept = x.shape[:2] if self.channels else x.shape
        use = now.within[self.stream] = now.within.get(self.stream, -1) + 1
        key = now.key + use * _BETWEEN_USES if use else now.key  # each use in one call has noise of its own
        noise = uniform(key, torch.Size(kept).numel(), self.stream).view(kept)
        keep = (noise >= self.p).to(x.dtype) / ((1 - self.p) or 1)  # with p = 1 nothing is left to rescale
        return x * keep.view(*kept, *[1] * (x.dim() - len(kept)))


class ChannelDropout(Dropout):
    """The same for whole channels."""

    channels = True


class Convolution(nn.Conv2d):
    """An ordinary convolution that, for a client alone on a CPU, is computed in tiles if the pass says so, and for a
    stack on a GPU in a way of its own."""

    path = ""  # its place in the net

    def forward(self, x: Tensor) -> Tensor:
        now = _current.training
        tile = now.tiles.get(self.path) if now is not None else None
        if tile is None or (tile != STACKED and _is_transformed()):
            return super().forward(x)
        if tile == STACKED:
            from fedexp.models import stacked  # needs Triton, which PyTorch has only where it can have a GPU

            return stacked.convolve(x, self.weight, self.bias, self.border)
        return convolution.tiled(x, self.weight, self.bias, self.border, tile)

    @property
    def border(self) -> int:
        """The padding on every side of an ordinary convolution."""
        return int(self.padding[0])

    @property
    def is_ordinary(self) -> bool:
        """Whether it is of the kind that can be computed in tiles."""
        ones = {*self.stride, *self.dilation, self.groups}
        return ones == {1} and self.padding_mode == "zeros" and len({*self.padding}) == 1  # not "same"


class MaxPool(nn.MaxPool2d):
    """Max-pooling that, on a CPU, is computed in the fastest way for a client alone and where no gradient is needed."""

    def forward(self, x: Tensor) -> Tensor:
        now = _current.training
        free = now.alone if now is not None else not pooling.needs_gradient(x)
        if not free or x.device.type != "cpu" or x.dim() != 4 or _is_transformed():
            return super().forward(x)
        if self._halves_both_sides and min(x.shape[2:]) > 1:
            return pooling.pooled(x)
        return super().forward(x.contiguous(memory_format=torch.channels_last))

    @property
    def _halves_both_sides(self) -> bool:
        """Whether its windows are of 2x2 and lie side by side."""
        settings = (self.kernel_size, self.stride, self.padding, self.dilation)
        pairs = [each if isinstance(each, tuple) else (each, each) for each in settings]
        return pairs == [(2, 2), (2, 2), (0, 0), (1, 1)] and not self.ceil_mode and not self.return_indices


class Linear(nn.Linear):
    """An ordinary linear layer. In a stack the bias is added separately: vectorized, F.linear scales it by 1 first."""

    def forward(self, x: Tensor) -> Tensor:
        now = _current.training
        if now is None or now.alone or self.bias is None:
            return super().forward(x)
        return x @ self.weight.T + self.bias


class Lstm(nn.LSTM):
    """An LSTM with the batch first, in one direction, from a state of zeros: PyTorch's own for a client alone on a CPU;
    otherwise step by step in operations that can be vectorized."""

    def forward(  # type: ignore[override]  # it takes no packed sequences
        self, input: Tensor, hx: None = None  # noqa: A002
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
        """Outputs [n, length, hidden]; the last output and the last cell state of each layer, [layers, n, hidden]."""
        if _pytorch_s(input, hx):
            return super().forward(input)
        x, (outputs, cells) = _by_steps(self, recurrent.lstm, input)
        return x, (outputs, cells)


class Gru(nn.GRU):
    """A GRU in the same way."""

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: None = None  # noqa: A002
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Outputs [n, length, hidden]; the last output of each layer, [layers, n, hidden]."""
        if _pytorch_s(input, hx):
            return super().forward(input)
        x, (outputs,) = _by_steps(self, recurrent.gru, input)
        return x, outputs


def _pytorch_s(x: Tensor, state: Any) -> bool:
    """Whether PyTorch's own form of a recurrent layer can be used."""
    if state is not None:
        raise TypeError("an LSTM or a GRU starts from zeros here")
    if not isinstance(x, Tensor):
        raise TypeError(f"an LSTM or a GRU takes a tensor here, not a {type(x).__name__}")
    now = _current.training
    return now is not None and now.alone and x.device.type == "cpu"


def _by_steps(net: nn.RNNBase, layer: Callable[..., Any], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The outputs of the uppermost layer, and what all layers have at the end, each [layers, n, hidden]."""
    last = []
    for number in range(net.num_layers):
        names = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if net.bias else [])]
        x, *ends = layer(x, *(getattr(net, f"{name}_l{number}") for name in names))
        last.append(ends)
    return x, [torch.stack(each) for each in zip(*last)]
