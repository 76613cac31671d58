"""Two-dimensional figures: final accuracy over two keys, and the classes that each client holds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedexp.report.groups import Group
from fedexp.report.page import Picture
from fedexp.report.runs import Recorded
from fedexp.report.style import CONTRAST, MAP, layout, styled

_MOST_WRITTEN = 150  # cells up to which a map's numbers are written in them


def over_two_keys(groups: Sequence[Group], found: pd.DataFrame) -> Picture | None:
    """A map of complete runs' final accuracy if exactly two keys vary over at least four groups; None
    otherwise, and where no run is complete."""
    keys = list(groups[0].keys)
    if len(keys) != 2 or len(groups) < 4:
        return None
    means = found.groupby("group")["final_accuracy"].mean()
    rows, columns = (sorted({group.keys[key] for group in groups}, key=_order) for key in keys)
    values = np.full((len(rows), len(columns)), np.nan)
    for number, group in enumerate(groups):
        if not group.done:  # what a failed run was at is no final accuracy
            continue
        values[rows.index(group.keys[keys[0]]), columns.index(group.keys[keys[1]])] = means.get(number, math.nan)
    if np.isnan(values).all():
        return None
    texts = [["" if np.isnan(value) else f"{value:.2f}" for value in row] for row in values]

    def draw() -> Figure:
        with styled():
            figure = Figure(figsize=(2.5 + 0.75 * len(columns), 1.5 + 0.45 * len(rows)), layout="constrained")
            axes = figure.subplots()
            shown = axes.imshow(values, cmap=CONTRAST.lower(), aspect="auto")
            figure.colorbar(shown, ax=axes, label="final accuracy, %")
            axes.set_xticks(range(len(columns)), columns, rotation=45 if max(map(len, columns)) > 6 else 0)
            axes.set_yticks(range(len(rows)), rows)
            axes.set(xlabel=keys[1], ylabel=keys[0])
            axes.grid(False)
            middle = (np.nanmin(values) + np.nanmax(values)) / 2
            for (row, column), value in np.ndenumerate(values):
                if values.size <= _MOST_WRITTEN and not np.isnan(value):
                    colour = "black" if value > middle else "white"
                    axes.text(column, row, texts[row][column], ha="center", va="center", fontsize=7, color=colour)
            return figure

    def chart() -> dict[str, Any]:
        hover = f"{keys[0]} %{{y}}<br>{keys[1]} %{{x}}<br>%{{z:.2f}} %<extra></extra>"
        trace = {
            "type": "heatmap", "z": values, "x": columns, "y": rows, "colorscale": CONTRAST, "hovertemplate": hover,
            "colorbar": {"title": {"text": "%"}},
        }  # fmt: skip
        if values.size <= _MOST_WRITTEN:
            trace |= {"text": texts, "texttemplate": "%{text}"}
        return {
            "data": [trace],
            "layout": layout(
                xaxis={"title": {"text": keys[1]}, "type": "category"},
                yaxis={"title": {"text": keys[0]}, "type": "category", "autorange": "reversed"},
                height=200 + 36 * len(rows),
            ),
        }  # fmt: skip

    return Picture("heat_map", f"final accuracy over {keys[0]} and {keys[1]}", chart, draw)


def partition(name: str, title: str, run: Recorded, group: str = "") -> Picture | None:
    """Examples of each class that each client holds; None without a readable partition.csv, or for a single client."""
    try:
        counts = pd.read_csv(run.path / "partition.csv").set_index("client").astype(float)
    except (OSError, ValueError, KeyError):
        return None
    if len(counts) < 2:
        return None

    def chart() -> dict[str, Any]:
        hover = "client %{x}<br>class %{y}<br>%{z} examples<extra></extra>"
        trace = {"type": "heatmap", "z": counts.to_numpy().T, "x": counts.index.to_numpy(), "y": list(counts.columns),
                 "colorscale": MAP, "hovertemplate": hover, "colorbar": {"title": {"text": "examples"}}}  # fmt: skip
        height = min(900, 180 + 18 * len(counts.columns))
        every = -(-len(counts) // 20)  # clients from one tick to the next: whole numbers
        axes = {
            "xaxis": {"title": {"text": "client"}, "tick0": 0, "dtick": every},
            "yaxis": {"title": {"text": "class"}, "type": "category"},
        }
        return {"data": [trace], "layout": layout(height=height, **axes)}

    return Picture(name, title, chart, None, group)


def _order(text: str) -> tuple[float, str]:
    """A sort key: numbers by value, then words."""
    try:
        return float(text), text
    except ValueError:
        return math.inf, text
