"""BatchNorm and Dropout as pure functions, so that a cohort trains vectorised and a client alone alike.
Convolutions and max-pooling in the form that CPUs compute fast.

Ordinary layers change buffers in place and draw from a global generator. These read the pass that they
belong to: how the examples of the batch are weighted (padding counts for nothing), which key the noise
comes from, and where new running statistics are put for the engine to keep.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from fedexp.models import convolution
from fedexp.randomness import uniform


@dataclass
class TrainingPass:
    """One client's forward passes on one batch: weight [B] or None (all count alike), key [] int64.

    alone: the client trains by itself, not as a row of a stack, so that memory formats can be chosen.
    tiles: its convolutions may be computed in tiles (fedexp.models.convolution).
    """

    weight: Tensor | None
    key: Tensor
    alone: bool = False
    tiles: bool = False
    statistics: dict[str, Tensor] = field(default_factory=dict)


_current: ContextVar[TrainingPass | None] = ContextVar("training_pass", default=None)


@contextmanager
def training(weight: Tensor | None, key: Tensor, alone: bool = False, tiles: bool = False) -> Iterator[TrainingPass]:
    """Layers train within this block: batch statistics and dropout, instead of running ones and none."""
    token = _current.set(TrainingPass(weight, key, alone, tiles))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


@contextmanager
def frozen() -> Iterator[None]:
    """Layers evaluate within this block, also inside a training pass (a teacher, a frozen encoder)."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


class BatchNorm(nn.Module):
    """Batch normalisation over dim 1 with PyTorch's statistics (momentum 0.1, unbiased running variance)."""

    def __init__(self, features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum, self.path = eps, momentum, ""
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        now = _current.get()
        if now is None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        if x.device.type == "cpu" and not now.alone:
            x = x.to(self.weight.dtype)  # autocast's bfloat16: the vectorised backward knows no mixed types on a CPU
        if now.weight is None:
            y, mean, inverse = torch.native_batch_norm(
                x, self.weight, self.bias, None, None, True, self.momentum, self.eps
            )
            variance = inverse.detach() ** -2 - self.eps
            count = x.numel() // x.shape[1]
            unbiased = variance * (count / max(count - 1, 1))
        else:
            y, mean, variance, count = self._weighted(x, now.weight)
            unbiased = variance * (count / (count - 1).clamp_min(1))
        self._keep(now, mean.detach(), unbiased.detach())
        return y

    def _weighted(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same over the examples that count (weight > 0) alone."""
        real = (weight > 0).to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        over = [d for d in range(x.dim()) if d != 1]
        shape = (1, -1, *[1] * (x.dim() - 2))
        count = real.sum() * (x[0, 0].numel())
        mean = (x * real).sum(over) / count
        centred = x - mean.view(shape)
        variance = (centred.square() * real).sum(over) / count
        scale = self.weight * (variance + self.eps).rsqrt()
        return centred * scale.view(shape) + self.bias.view(shape), mean, variance, count

    def _keep(self, now: TrainingPass, mean: Tensor, unbiased: Tensor) -> None:
        for name, new in (("running_mean", mean), ("running_var", unbiased)):
            old = getattr(self, name)
            now.statistics[f"{self.path}.{name}"] = old + self.momentum * (new.to(old.dtype) - old)


class Dropout(nn.Module):
    """Zero each entry (or, with `channels`, each whole channel) with probability p; rescale the rest."""

    def __init__(self, p: float, channels: bool = False) -> None:
        super().__init__()
        self.p, self.channels, self.stream = p, channels, 0

    def forward(self, x: Tensor) -> Tensor:
        now = _current.get()
        if now is None or self.p == 0:
            return x
        kept = x.shape[:2] if self.channels else x.shape
        noise = uniform(now.key, torch.Size(kept).numel(), self.stream).view(kept)
        keep = (noise >= self.p).to(x.dtype) / (1 - self.p)
        return x * keep.view(*kept, *[1] * (x.dim() - len(kept)))


class Convolution(nn.Conv2d):
    """An ordinary convolution that, for a client alone on a CPU, is computed in tiles where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        now = _current.get()
        if now is not None and now.tiles and self._ordinary():
            tile = convolution.tile_size(x, self.weight, self.padding[0])
            if tile is not None:
                return convolution.tiled(x, self.weight, self.bias, self.padding[0], tile)
        return super().forward(x)

    def _ordinary(self) -> bool:
        ones = {*self.stride, *self.dilation, self.groups}
        return ones == {1} and self.padding_mode == "zeros" and len({*self.padding}) == 1  # not "same"


class MaxPool(nn.MaxPool2d):
    """Max-pooling that, for a client alone on a CPU, works with channels last: several times faster in PyTorch."""

    def forward(self, x: Tensor) -> Tensor:
        now = _current.get()
        if now is None or not now.alone or x.device.type != "cpu":
            return super().forward(x)
        return super().forward(x.contiguous(memory_format=torch.channels_last))


def purify(net: nn.Module) -> nn.Module:
    """Replace each ordinary BatchNorm, Dropout, Conv2d and MaxPool2d in `net` by its kind here, weights kept.

    So a user's own model may use the ordinary ones. Raises TypeError for layers that cannot be pure
    (recurrent ones, batch norms without running statistics and the like). Noise that a model adds itself where
    `self.training` (F.dropout, say) cannot be seen here: a Model's net is in eval mode, so it is off in training too.
    """
    streams = 0
    replaced: dict[nn.Module, nn.Module] = {}  # a layer used at several places stays one layer
    for path, module in list(net.named_modules(remove_duplicate=False)):
        new: nn.Module | None = None
        if module in replaced:
            _place(net, path, replaced[module])
            continue
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if not (module.affine and module.track_running_stats and module.momentum is not None):
                raise TypeError(f"{path}: BatchNorm must be affine, with running statistics and a momentum")
            new = BatchNorm(module.num_features, module.eps, module.momentum).to(module.weight)
            new.load_state_dict({name: module.state_dict()[name] for name in new.state_dict()})
            for name, parameter in new.named_parameters():
                parameter.requires_grad_(module.get_parameter(name).requires_grad)
        elif isinstance(module, nn.Dropout):
            new = Dropout(module.p)
        elif isinstance(module, (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
            new = Dropout(module.p, channels=True)
        elif type(module) is nn.MaxPool2d:
            new = MaxPool(
                module.kernel_size, module.stride, module.padding, module.dilation, ceil_mode=module.ceil_mode
            )
        elif type(module) is nn.Conv2d:
            new = skip_init(
                Convolution, module.in_channels, module.out_channels, module.kernel_size, module.stride,
                module.padding, module.dilation, module.groups, module.bias is not None, module.padding_mode,
            )  # fmt: skip
            new.weight, new.bias = module.weight, module.bias
        elif isinstance(module, (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU, nn.RNNBase)):
            raise TypeError(f"{path}: {type(module).__name__} has no pure form here")
        elif isinstance(module, nn.MultiheadAttention) and module.dropout > 0:
            raise TypeError(f"{path}: MultiheadAttention must be without dropout")
        elif isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise TypeError(f"{path}: InstanceNorm must be without running statistics")
        if new is not None:
            _place(net, path, new)
        layer = replaced[module] = new or module
        if isinstance(layer, BatchNorm):
            layer.path = path
        if isinstance(layer, Dropout):
            streams += 1
            layer.stream = streams
    return net


def _place(net: nn.Module, path: str, layer: nn.Module) -> None:
    """Put `layer` at `path` in `net`."""
    parent, _, name = path.rpartition(".")
    setattr(net.get_submodule(parent), name, layer)
