"""Making a network's layers pure functions: each ordinary layer becomes its counterpart in fedexp/models/layers.py."""

from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from fedexp.models.layers import BatchNorm, ChannelDropout, Convolution, Dropout, Gru, Linear, Lstm, MaxPool

_PURE = {nn.Conv2d: Convolution, nn.MaxPool2d: MaxPool, nn.Linear: Linear, nn.LSTM: Lstm, nn.GRU: Gru}
_IMPURE = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU, _SpectralNorm)
_ODD = ("max_norm", "scale_grad_by_freq", "sparse")  # settings of embeddings that change weights or their gradients
_REPLACED = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


def purify(net: nn.Module) -> nn.Module:
    """Make each ordinary BatchNorm, Dropout, Conv2d, MaxPool2d, Linear, LSTM and GRU in `net` its counterpart.

    A layer changes its class alone, and so keeps its weights and settings. A user's own model may therefore use the
    ordinary layers. Raises TypeError for layers without a pure form (other recurrent layers, batch norms without
    running statistics and the like). What a layer does itself if `self.training` (such as F.dropout) cannot be
    replaced: a Model's net is in eval mode, so that it is off in training too.
    """
    streams = 0
    refuse_complex(net)
    _refuse_odd_weights(net)
    net.train()  # shows what the net's own `train` leaves in evaluation mode
    for path, layer in net.named_modules():
        _refuse_impure(path, layer)
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False  # it cannot be vectorized
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.__class__ = BatchNorm
            layer.num_batches_tracked = None  # nothing here uses it
        elif isinstance(layer, nn.Dropout):
            layer.__class__ = Dropout  # type: ignore[assignment]
        elif isinstance(layer, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            layer.__class__ = ChannelDropout  # type: ignore[assignment]
        elif type(layer) in _PURE:
            layer.__class__ = _PURE[type(layer)]
        if isinstance(layer, BatchNorm | Dropout):
            layer.always_evaluates = not layer.training
        if isinstance(layer, BatchNorm | Convolution):
            layer.path = path
        if isinstance(layer, Dropout):
            streams += 1
            layer.stream = streams
    return net


def refuse_another_head(head: nn.Linear) -> None:
    """Raise TypeError for a head that computes something else than an ordinary linear layer, as which algorithms use
    it."""
    plain = type(head) in (nn.Linear, Linear) and not (head._forward_hooks or head._forward_pre_hooks)
    right = "must be an ordinary nn.Linear, without hooks and parametrizations; a net without a head may be any module"
    if not plain:
        raise TypeError(f"head: {type(head).__name__} {right}")


def refuse_complex(net: nn.Module) -> None:
    """Raise TypeError for complex entries, whose imaginary part PyTorch discards as it changes a net's type."""
    for path, entry in (*net.named_parameters(), *net.named_buffers()):
        if entry.is_complex():
            raise TypeError(f"{path}: complex numbers are not supported; keep real and imaginary parts in two entries")


def _refuse_odd_weights(net: nn.Module) -> None:
    for path, weight in net.named_parameters():
        if weight._backward_hooks or weight._post_accumulate_grad_hooks:
            raise TypeError(
                f"{path}: hooks of weights are not called here; change gradients in an algorithm's `correct`"
            )


def _refuse_impure(path: str, layer: nn.Module) -> None:
    kind, own = type(layer).__name__, getattr(type(layer).forward, "__module__", "")
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        raise TypeError(f"{path}: {kind} has no weights yet; give the layer its sizes")
    if isinstance(layer, _REPLACED) and not own.startswith(("torch.nn.", "fedexp.models.layers")):
        raise TypeError(
            f"{path}: {kind} has a forward of its own, which would be replaced; put the layer into a module"
        )
    if isinstance(layer, _REPLACED) and nn.utils.parametrize.is_parametrized(layer):
        raise TypeError(f"{path}: {kind} must be without parametrizations")
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        if not (layer.affine and layer.track_running_stats and layer.momentum is not None):
            raise TypeError(f"{path}: BatchNorm must be affine, with running statistics and a momentum")
    elif type(layer) in (nn.LSTM, nn.GRU, Lstm, Gru):
        if not layer.batch_first or layer.bidirectional or layer.dropout or layer.proj_size:
            kind = "LSTM" if isinstance(layer, nn.LSTM) else "GRU"
            raise TypeError(f"{path}: {kind} must be batch_first, in one direction, without dropout or projection")
    elif isinstance(layer, nn.RNNBase):
        raise TypeError(f"{path}: {kind} has no pure form here; use nn.LSTM or nn.GRU")
    elif isinstance(layer, _IMPURE):
        raise TypeError(f"{path}: {kind} has no pure form here")
    elif any(isinstance(hook, SpectralNorm) for hook in layer._forward_pre_hooks.values()):
        raise TypeError(f"{path}: spectral_norm has no pure form here")
    elif isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (odd := [key for key in _ODD if getattr(layer, key)]):
        raise TypeError(f"{path}: {kind} must be without {', '.join(odd)}")
    elif isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0:
        raise TypeError(f"{path}: MultiheadAttention must be without dropout (set its attribute `dropout` to 0)")
    elif isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        raise TypeError(f"{path}: InstanceNorm must be without running statistics")
