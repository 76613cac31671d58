"""The confusion matrix as a table and as a picture, and the accuracy of each class."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import Tensor

from fedexp.record.pictures import blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def table(counts: Tensor, class_names: list[str]) -> pd.DataFrame:
    """How many test examples of each class (rows) are predicted as each class (columns)."""
    return pd.DataFrame(counts.numpy(), index=class_names, columns=class_names).rename_axis("class")


def per_class(counts: Tensor, examples: Tensor, class_names: list[str]) -> pd.DataFrame:
    """Accuracy (recall, a fraction; empty without examples) and number of test examples of each class, `examples`
    int64 [C]."""
    accuracy = counts.diagonal().double() / examples
    columns = {"accuracy": accuracy.numpy(), "examples": examples.numpy()}
    return pd.DataFrame(columns, index=class_names).rename_axis("class")


def picture(counts: Tensor, class_names: list[str]) -> "Figure":
    """Shares of each true class (rows) by predicted class (columns), written in the cells of small matrices."""
    shares = (counts.double() / counts.sum(1, keepdim=True).clamp_min(1)).numpy()
    classes = len(class_names)
    side = min(14, 3 + classes * 0.4)
    figure = blank(side + 1, side)
    axes = figure.subplots()
    figure.colorbar(axes.imshow(shares, vmin=0, vmax=1, cmap="Blues"), ax=axes)
    axes.set(xlabel="predicted class", ylabel="true class")
    if classes <= 30:
        axes.set_xticks(range(classes), class_names, rotation=90, parse_math=False)  # "$" would begin a formula
        axes.set_yticks(range(classes), class_names, parse_math=False)
    if classes <= 15:
        for row, column in np.argwhere(shares >= 0.005):  # less would be written as 0.00
            share = shares[row, column]
            colour = "white" if share > 0.5 else "black"
            written = axes.text(column, row, f"{share:.2f}", ha="center", va="center", fontsize=7, color=colour)
            written.set_in_layout(False)  # it lies within the axes: to measure a hundred of them takes long
    return figure
