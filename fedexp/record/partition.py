"""The partition as a picture and as a table: clients x classes."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from fedexp.record.pictures import blank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BUBBLES = 600  # (client, class) pairs; with more, a map of colours is drawn
_MOST_TICKS = 20
_LARGEST = 120  # points squared: the largest bubble


def table(label_counts: Tensor, class_names: list[str] | None = None) -> pd.DataFrame:
    """Examples of each class (columns) that each client (rows) holds."""
    columns = class_names or [f"class_{label}" for label in range(label_counts.shape[1])]
    return pd.DataFrame(label_counts.numpy(), columns=columns).rename_axis("client")


def picture(label_counts: Tensor, title: str) -> "Figure":
    """How many examples of each class each client holds: a bubble for each pair, its area proportional to the number,
    or a map of colours if there are many pairs. title: the figure's title."""
    from matplotlib.ticker import MaxNLocator

    clients, classes = label_counts.shape
    figure = blank(min(14, 4 + clients * 0.12), min(12, 2.2 + classes * 0.25))
    axes = figure.subplots()
    if clients * classes > _MOST_BUBBLES:
        shown = axes.imshow(
            label_counts.T.numpy(), cmap="Blues", aspect="auto", origin="lower", interpolation="nearest"
        )
        figure.colorbar(shown, ax=axes, label="examples")
    else:
        _bubbles(axes, label_counts)
        axes.set_xlim(-0.7, clients - 0.3)
        axes.set_ylim(-0.7, classes - 0.3)  # so that there is no tick beyond the classes
    axes.set(xlabel="client", ylabel="class")
    axes.set_title(title, fontsize=9, parse_math=False)
    for axis, count in ((axes.xaxis, clients), (axes.yaxis, classes)):
        if count > _MOST_TICKS:
            axis.set_major_locator(MaxNLocator(_MOST_TICKS, integer=True))
        else:
            axis.set_ticks(range(count))
    return figure


def _bubbles(axes: "Axes", label_counts: Tensor) -> None:
    client, label = label_counts.nonzero(as_tuple=True)
    count, most = label_counts[client, label].numpy(), int(label_counts.max())
    area = _LARGEST / most
    axes.scatter(client, label, s=count * area, alpha=0.8, edgecolors="none")
    for size in _round_sizes(most):
        axes.scatter([], [], s=size * area, color="C0", alpha=0.8, label=f"{size:,}")
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "labelspacing": 1.1}
    axes.legend(title="examples", frameon=False, fontsize=8, title_fontsize=8, **place)


def _round_sizes(most: int) -> list[int]:
    """About a tenth, a third and the whole of the largest number, rounded down to one digit."""
    sizes = np.maximum(1, most * np.array([0.1, 1 / 3, 1.0]))
    units = 10 ** np.floor(np.log10(sizes))
    return np.unique((sizes / units).astype(int) * units.astype(int)).tolist()
