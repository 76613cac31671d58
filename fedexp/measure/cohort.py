"""What is measured of the cohort that trained in a round."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedexp import tree
from fedexp.engine import Exchange
from fedexp.measure.divergence import layer_divergence, weight_divergence
from fedexp.measure.skew import mean_emd
from fedexp.tree import Stack


def cohort_measures(
    exchanges: list[Exchange], weights: list[str], centre: Callable[[Tensor], Stack], label_counts: Tensor
) -> dict[str, float]:
    """Local loss, weight divergence (over all weights, and per layer) and EMD of those who trained.

    centre(ids) gives the model that each is measured against; `weights` are the entries that are trained.
    """
    trained = [each for each in exchanges if each.trained is not None and each.trained.params]
    ids = torch.cat([each.ids for each in trained])
    names = [name for name in trained[0].trained.params if name in set(weights)]
    models = tree.join([{name: each.trained.params[name] for name in names} for each in trained])
    centres = centre(ids)
    divergence = weight_divergence(models, centres)
    layers = layer_divergence(models, centres)
    numbers = [torch.cat([each.trained.loss for each in trained]).mean(), divergence.mean(), divergence.max()]
    numbers += [number for layer in layers.values() for number in (layer.mean(), layer.max())]
    loss, mean, largest, *rest = torch.stack([number.double() for number in numbers]).tolist()  # one transfer
    row = {
        "local_loss": loss, "divergence_mean": mean, "divergence_max": largest,
        "cohort_emd": mean_emd(label_counts, ids),
    }  # fmt: skip
    columns = [f"{kind}/{name}" for name in layers for kind in ("divergence_mean", "divergence_max")]
    return row | dict(zip(columns, rest))
