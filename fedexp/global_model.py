"""The global model of a run, as one module that predicts."""

from typing import Any

import torch
from torch import Tensor, nn

from fedexp.algorithms.fedavg import FedAvg
from fedexp.data import Transform
from fedexp.engine import Context, State, returned
from fedexp.errors import ConfigError, require
from fedexp.models import Model
from fedexp.tree import Params


@torch.no_grad()
def check_final(algorithm: FedAvg, state: State, ctx: Context) -> None:
    """Raise ConfigError unless `predict` gives the same logits for what `final` returns as for the whole State."""
    x = ctx.world.prepare_test(slice(2))
    final = returned.tensors("final", algorithm.final(state))
    right = 'must return a model with which alone, {"params": model}, predict gives the logits of the whole State'
    try:
        given = algorithm.predict({"params": final}, ctx.model, x)
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ConfigError("", "final", f"{right}; it ends in {type(error).__name__}: {error}") from error
    given = returned.logits(given, len(x), ctx.world.classes).nan_to_num()
    wanted = algorithm.predict(state, ctx.model, x).nan_to_num()
    far = 0.02 * float(wanted.abs().max())  # another order of operations may round otherwise, in bfloat16, too
    require(torch.allclose(given, wanted, rtol=0, atol=far), "", "final", f"{right}; it gives others")


class GlobalModel(nn.Module):
    """The global model of a run as one module: examples in, logits [n, C] out.

    Examples are given as the data set holds them, as a tensor or as what makes one, such as a numpy array: images
    [n, c, h, w] in uint8 from 0 to 255, other features as floats, tokens as whole numbers. Images in floats are taken
    as scaled to [0, 1]. The module scales and normalises examples as the data set's transform does, without
    augmentation. Layers stay in evaluation mode, even after `train`.

    shape: of one example of the data set. tokens: whether its examples are sequences of tokens, which may be given in
    other lengths.
    """

    def __init__(
        self, algorithm: FedAvg, model: Model, params: Params, transform: Transform, shape: tuple[int, ...],
        tokens: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self._algorithm, self._model, self._transform = algorithm, model, transform
        self._shape, self._tokens = shape, tokens
        self._names = {name: name.replace(".", ":") for name in params}  # a buffer's name has no dots
        for name, value in params.items():
            self.register_buffer(self._names[name], value)
        self.eval()

    @property
    def params(self) -> Params:
        """The weights by name: those of model.pt."""
        return {name: getattr(self, own) for name, own in self._names.items()}

    @torch.no_grad()
    def forward(self, x: Any) -> Tensor:
        """The logits of examples. Raises ConfigError for anything that has not the type and shape of examples."""
        params = self.params
        weight = next(value for value in params.values() if value.is_floating_point())
        x = self._transform(self._examples(x).to(weight.device), None, weight.dtype)
        return self._algorithm.predict({"params": params}, self._model, x)

    def _examples(self, given: Any) -> Tensor:
        try:  # a copy, because PyTorch warns of arrays that are read-only, as those of pictures often are
            x = given if isinstance(given, Tensor) else torch.tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            right = f"must be a tensor, or what makes one, such as a numpy array ({error})"
            raise ConfigError("x", type(given).__name__, right) from error
        fits = x.dim() == 2 if self._tokens else x.shape[1:] == self._shape
        right = "length" if self._tokens else ", ".join(map(str, self._shape))
        require(fits, "x", [*x.shape], f"must have the shape [n, {right}]: several examples like the data set's")
        whole = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
        if self._tokens:
            require(whole, "x", x.dtype, "must be whole numbers: the data set's examples are tokens")
            return x.long()
        right = "must be uint8, from 0 to 255, or floats; x.astype('uint8') or x.byte() turns such pictures into uint8"
        require(x.dtype == torch.uint8 or x.is_floating_point(), "x", x.dtype, right)
        return x
