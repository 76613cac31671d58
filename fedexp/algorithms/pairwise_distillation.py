"""Distillation of the similarities between the examples of a batch: probabilistic knowledge transfer (Passalis and
Tefas, ECCV 2018), with the kernels of CADIS."""

import torch
from torch import Tensor

KERNELS = ("centred", "gaussian", "cosine")

_ROUNDING = 16  # distances are equal if their deviation is below this many rounding units of their mean


def distil(kernel: str, teacher: Tensor, student: Tensor, weight: Tensor) -> Tensor:
    """KL(teacher || student) of the pairwise distributions of features [B, d] over a batch, padding left out.

    centred: exp(-(d - mean d)^2 / 2(var d + .001)) of the distances d, KL summed over the batch (as in the published
    code, which made the tables); gaussian: exp(-d^2 / 2h^2) with the bandwidth h held fixed at d's standard
    deviation, summed; cosine: (cos + 1) / 2, the mean over pairs (Passalis and Tefas). Variances divide by n - 1, as
    in torch.std. Rows are normalised; an example is no neighbour of itself. Where all distances are equal h is 0;
    then each row of `gaussian` is uniform, as it is for any other h, and has no gradient.
    """
    pairs = (weight[:, None] * weight) * (1 - torch.eye(len(weight), dtype=weight.dtype, device=weight.device))
    p, q = (_log_neighbours(kernel, features.to(weight.dtype), pairs) for features in (teacher, student))
    divergence = (pairs * p.exp() * (p - q)).sum()
    return divergence / pairs.sum().clamp_min(1) if kernel == "cosine" else divergence


def _log_neighbours(kernel: str, features: Tensor, pairs: Tensor) -> Tensor:
    """log p(j | i) [B, B] under the kernel; without meaning where `pairs` is 0."""
    if kernel == "cosine":
        unit = features * (features.square().sum(1, keepdim=True) + 1e-12).rsqrt()
        logs = ((unit @ unit.T + 1) / 2 + 1e-7).log()
    else:
        squares = (features[:, None] - features).square().sum(-1)
        apart = squares > 0  # the square root has no gradient at 0, where two examples have the same features
        distance = torch.where(apart, torch.where(apart, squares, 1.0).sqrt(), 0.0)
        count = pairs.sum()
        mean = (distance * pairs).sum() / count.clamp_min(1)
        variance = ((distance - mean).square() * pairs).sum() / (count - 1).clamp_min(1)
        if kernel == "centred":
            logs = -(distance - mean).square() / (2 * (variance + 0.001))
        else:
            bandwidth = variance.detach().sqrt()
            spread = bandwidth > _ROUNDING * torch.finfo(mean.dtype).eps * mean.detach()
            logs = torch.where(spread, -(distance / torch.where(spread, bandwidth, 1.0)).square() / 2, 0.0)
    return torch.where(pairs > 0, logs, -1e4).log_softmax(1)
