"""Weight divergence ||w_k - w|| / ||w|| of a cohort's models w_k from their center w, which for most algorithms is the
new global model.

This measure is fedexp's own, after that of Zhao et al. (2018, section 3, eq. 1): the global model's distance from
centralized SGD, which fedexp/measure/reference.py computes.
"""

import torch
from torch import Tensor

from fedexp.round import Round
from fedexp.tree import Stack, columns


def divergence(done: Round) -> dict[str, Tensor]:
    """Mean and largest divergence over the cohort: of all trained weights, and of each weight tensor by itself."""
    models = done.ctx.model.trained(done.models)
    if not models:
        return {}
    layers = layer_divergence(models, done.centers)
    found = {"": weight_divergence(models, done.centers), **{f"/{name}": value for name, value in layers.items()}}
    return {
        f"divergence_{kind}{name}": how(value)
        for name, value in found.items()
        for kind, how in (("mean", torch.mean), ("max", torch.max))
    }


def weight_divergence(models: Stack, centers: Stack) -> Tensor:
    """Relative distance of each of K models from its center, over all entries of `models`: float64 [K]."""
    moved = length = torch.zeros((), dtype=torch.float64)
    for model, center in columns(models, centers):
        moved = moved + (model - center).square().sum(1)
        length = length + center.square().sum(1)
    return (moved / length).sqrt()


def layer_divergence(models: Stack, centers: Stack) -> dict[str, Tensor]:
    """The same for each weight tensor by itself (two dimensions or more: no biases, no statistics): float64 [K]."""
    return {name: weight_divergence({name: model}, centers) for name, model in models.items() if model.dim() > 2}
