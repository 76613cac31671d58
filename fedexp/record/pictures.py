"""Pictures for algorithms' artifacts: label distributions, the elbow curve, features in two dimensions."""

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedexp.randomness import key

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def blank(width: float, height: float) -> "Figure":
    """An empty figure; its size is in inches. matplotlib is imported here and not above, since that takes half a
    second, which a run without pictures need not wait."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def distributions(shown: dict[str, Tensor]) -> "Figure":
    """Bars of each source's label distribution [N, C], a panel for each of the first three clients."""
    clients, classes = next(iter(shown.values())).shape
    count, width = min(3, clients), 0.8 / len(shown)
    figure = blank(4 * count, 3)
    panels = figure.subplots(1, count, squeeze=False)[0]
    for client, axes in enumerate(panels):
        for place, (source, values) in enumerate(shown.items()):
            at = np.arange(classes) + (place - (len(shown) - 1) / 2) * width
            axes.bar(at, values[client].numpy(), width, label=source)
        axes.set(title=f"client {client}", xlabel="class", ylabel="share")
        axes.locator_params("x", integer=True)
    panels[0].legend(fontsize="small")
    return figure


def elbow(curve: np.ndarray, chosen: int) -> "Figure":
    """K-means' inertia for k = 1, 2, ..., and the number of clusters in use."""
    figure = blank(4.5, 3)
    axes = figure.subplots()
    axes.plot(np.arange(1, len(curve) + 1), curve, marker="o")
    axes.axvline(chosen, color="grey", linestyle="--", label=f"{chosen} in use")
    axes.set(xlabel="clusters", ylabel="sum of squared distances")
    axes.locator_params("x", integer=True)
    axes.legend()
    return figure


def features(named: dict[str, Tensor], labels: Tensor, seed: int) -> "Figure":
    """t-SNE of each encoder's features [n, d], one panel each, coloured by label [n]; empty for a diverged encoder."""
    from sklearn.manifold import TSNE

    figure = blank(4 * len(named), 4)
    for axes, (name, values) in zip(figure.subplots(1, len(named), squeeze=False)[0], named.items()):
        if not values.isfinite().all():
            axes.set(title=f"{name}: not finite", xticks=[], yticks=[])
            continue
        perplexity = min(30, (len(values) - 1) / 3)
        flat = TSNE(perplexity=perplexity, random_state=key(seed, "t-SNE") % 2**32).fit_transform(values.numpy())
        for label in labels.unique().tolist():
            rows = (labels == label).numpy()
            axes.scatter(*flat[rows].T, s=4, label=str(label))
        axes.set(title=name, xticks=[], yticks=[])
    if axes.has_data():
        axes.legend(fontsize="small", markerscale=3)
    return figure
