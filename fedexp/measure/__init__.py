"""Measures: pure functions of a round's facts, or of tensors.

What the config's `measures` names is called at every evaluated round: a function of a fedexp.round.Round that returns
numbers (or tensors []) by name. One's own is one function and one word: `+measures.mine=package.module.function`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def numbers(found: dict[str, Any]) -> dict[str, float]:
    """The same as plain numbers: all that are on a device leave it together, in one transfer."""
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    values = torch.stack([value.double() for value in tensors.values()]).tolist() if tensors else []
    plain = dict(zip(tensors, values))
    return {name: plain.get(name, value) for name, value in found.items()}


Measure = Callable[[Any], dict[str, Any]]
