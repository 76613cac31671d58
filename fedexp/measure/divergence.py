"""Weight divergence ||w_k - w|| / ||w|| of a cohort's models from the ones that they are measured against.

A measure of ours, after that of Zhao et al. (2018, section 3, eq. 1): the global model's distance from centralized
SGD, which is fedexp/reference.py.
"""

import torch
from torch import Tensor

from fedexp.tree import Stack, row_norms


def weight_divergence(models: Stack, centres: Stack) -> Tensor:
    """Relative distance of each of K models from its centre, over all weights: [K]."""
    gaps = [row_norms({name: models[name] - centres[name]}) for name in models]  # never all of K models beside them
    return torch.stack(gaps).norm(dim=0) / row_norms({name: centres[name] for name in models})


def layer_divergence(models: Stack, centres: Stack) -> dict[str, Tensor]:
    """The same for each weight tensor by itself (two dimensions or more: no biases, no statistics): [K]."""
    return {
        name: weight_divergence({name: model}, centres)
        for name, model in models.items()
        if model.dim() > 2 and torch.is_floating_point(model)
    }
