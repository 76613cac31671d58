"""Starting from pre-trained weights: all entries below the head are replaced; the head stays as initialised."""

import re
from pathlib import Path
from pickle import UnpicklingError
from typing import cast

import torch
from torch import Tensor, nn

from fedexp.errors import ConfigError, require
from fedexp.models.classifier import Classifier
from fedexp.tree import Params

_KEY = "model.pretrained"
_TORCHVISION_S = re.compile(r"\w+_Weights\.\w+")  # a name of its weights, such as ResNet18_Weights.IMAGENET1K_V1
_SOURCES = "a file with a state dict, or a name such as ResNet18_Weights.IMAGENET1K_V1"
_SHOWN = 3  # entries that an error names


def load(net: nn.Module, source: str) -> None:
    """Load the entries of `source` into the encoder of a freshly initialised Classifier, in place; its head stays.

    source: a file with a state dict, such as a finished run's model.pt or a file of torchvision's, or the name of
    weights that torchvision downloads. Entries are named as in the model, or as in its encoder. Raises ConfigError if
    the source cannot be read or downloaded, or if an entry is missing, has another shape, is sparse, complex or not
    finite, or belongs neither to the model nor to the file's own head.
    """
    require(isinstance(net, Classifier), _KEY, source, "needs a model of an encoder and a head, which is replaced")
    encoder = cast(Classifier, net).encoder
    held = _downloaded(source) if _TORCHVISION_S.fullmatch(source) else _read(source)
    needed = _without_counts(encoder.state_dict())
    inside = {name: name if name in needed else name.removeprefix("encoder.") for name in held}
    given = {inside[name]: leaf for name, leaf in _without_counts(held).items()}
    missing = [name for name in needed if name not in given]
    require(not missing, _KEY, source, f"lacks {_some(missing)} of this model")
    unlike = [f"{name} ({list(given[name].shape)}, here {list(leaf.shape)})" for name, leaf in needed.items()
              if given[name].shape != leaf.shape]  # fmt: skip
    require(not unlike, _KEY, source, f"has other shapes than this model: {_some(unlike)}")
    unusable = [name for name, leaf in needed.items() if not _usable(given[name], leaf.dtype)]
    require(not unusable, _KEY, source, f"has entries that are not dense, real and finite: {_some(unusable)}")
    own_head = [name.split(".")[0] for name, leaf in given.items() if leaf.dim() == 2][-1:]  # the last layer
    unknown = [name for name in given if name not in needed and name.split(".")[0] not in own_head]
    require(not unknown, _KEY, source, f"has entries that this model lacks: {_some(unknown)}")
    encoder.load_state_dict({name: given[name] for name in needed}, strict=False)  # without counts


def _without_counts(entries: Params) -> Params:
    """All entries but normalisation layers' counts of batches, which nothing here uses."""
    return {name: leaf for name, leaf in entries.items() if not name.endswith("num_batches_tracked")}


def _usable(leaf: Tensor, dtype: torch.dtype) -> bool:
    """Whether an entry can become a weight of type `dtype`."""
    plain = leaf.layout == torch.strided and not (leaf.is_meta or leaf.is_quantized or leaf.is_complex())
    return plain and bool(leaf.to(dtype).isfinite().all())


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _read(source: str) -> Params:
    try:
        held = torch.load(Path(source).expanduser(), map_location="cpu", weights_only=True)
    except Exception as error:  # for a damaged file, or one of text, PyTorch's reader raises errors of many kinds
        reason = f"{type(error).__name__}: " + " ".join(str(error).split())[:200]
        if isinstance(error, UnpicklingError):  # whose text is advice to load it all the same
            reason = "it is damaged, or holds more than tensors, such as a whole model"
        raise ConfigError(_KEY, source, f"cannot be read ({reason}); it must be {_SOURCES}") from error
    is_params = isinstance(held, dict) and bool(held)
    is_params = is_params and all(isinstance(name, str) and isinstance(leaf, Tensor) for name, leaf in held.items())
    require(is_params, _KEY, source, "must be a file with a state dict: tensors by name")
    return held


def _downloaded(source: str) -> Params:
    from torchvision import models

    try:
        weights = models.get_weight(source)
    except (ValueError, KeyError) as error:
        raise ConfigError(_KEY, source, f"torchvision has no weights of this name; give {_SOURCES}") from error
    try:
        return weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # no network, a torn file
        raise ConfigError(_KEY, source, f"could not be downloaded ({error}); give a file") from error
