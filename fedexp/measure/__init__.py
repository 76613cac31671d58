"""Measures: pure functions of a finished round, or of tensors.

The functions that the config's `measures` names are called in every evaluated round in which a client took part: each
takes a fedexp.round.Round and returns numbers (or tensors []) by name. To add one of your own:
`+measures.mine=package.module.function`.
"""

from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from numpy import floating
from torch import Tensor


def numbers(found: dict[str, Any]) -> dict[str, float]:
    """The values as plain numbers; tensors on the same device leave it in one transfer."""
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    found = {name: float(value) if isinstance(value, floating) else value for name, value in found.items()}
    for device in {value.device for value in tensors.values()}:
        here = {name: value.double() for name, value in tensors.items() if value.device == device}
        found |= dict(zip(here, torch.stack(list(here.values())).tolist()))
    return found


def is_number(value: Any) -> bool:
    """Whether `numbers` makes a plain number of it: a number of Python or numpy, or a tensor []."""
    return value.dim() == 0 if isinstance(value, Tensor) else isinstance(value, Real)


Measure = Callable[[Any], dict[str, Any]]
