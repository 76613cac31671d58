"""Measures: pure functions of a finished round, or of tensors.

The functions that the config's `measures` names are called in every evaluated round: each takes a fedexp.round.Round
and returns numbers (or tensors []) by name. To add one of your own: `+measures.mine=package.module.function`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def numbers(found: dict[str, Any]) -> dict[str, float]:
    """The values as plain numbers; all tensors leave the device in one transfer."""
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    values = torch.stack([value.double() for value in tensors.values()]).tolist() if tensors else []
    return found | dict(zip(tensors, values))


Measure = Callable[[Any], dict[str, Any]]
