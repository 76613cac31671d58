"""The partition as a picture and as a table: clients x classes."""

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor


def table(label_counts: Tensor, class_names: list[str] | None = None) -> pd.DataFrame:
    """Examples of each class (columns) that each client (rows) holds."""
    columns = class_names or [f"class_{label}" for label in range(label_counts.shape[1])]
    return pd.DataFrame(label_counts.numpy(), columns=columns).rename_axis("client")


def picture(label_counts: Tensor) -> Figure:
    """A bubble for each (client, class), its area the number of examples."""
    clients, classes = label_counts.shape
    figure = Figure(figsize=(min(16, 3 + clients * 0.12), min(12, 2 + classes * 0.25)), layout="constrained")
    axes = figure.subplots()
    client, label = label_counts.nonzero(as_tuple=True)
    count = label_counts[client, label].double()
    axes.scatter(client, label, s=(count / count.max() * 120).numpy(), alpha=0.8, edgecolors="none")
    axes.set(xlabel="client", ylabel="class", title=f"{int(label_counts.sum())} examples")
    axes.set_xlim(-0.7, clients - 0.3)
    axes.set_ylim(-0.7, classes - 0.3)  # no tick for a class that is not there
    axes.locator_params(integer=True)
    return figure
