"""Accuracy over rounds and over bytes: a line an algorithm, mean and band over its seeds."""

import io
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedexp.report.runs import Recorded

_STYLE = {
    "svg.fonttype": "path", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#e4e4e4", "legend.frameon": False, "axes.axisbelow": True,
}  # fmt: skip
_DASHES = ("-", "--", ":", "-.")


def accuracy_curves(groups: Mapping[str, Sequence[Recorded]], published: Mapping[str, float]) -> bytes:
    """Two panels as svg. `published`: final accuracies (percent) as marks at the right edge."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        over_rounds, over_bytes = figure.subplots(1, 2, sharey=True)
        for number, (label, runs) in enumerate(groups.items()):
            look = {"color": f"C{number % 10}", "linestyle": _DASHES[number // 10 % 4]}
            for axes, along, unit in ((over_rounds, "round", 1), (over_bytes, "bytes_total", 1e6)):
                x, mean, std = _band(runs, along)
                few = "o" if len(x) < 12 else None
                axes.plot(x / unit, mean, label=label, linewidth=1.5, marker=few, markersize=3, **look)
                if len(runs) > 1:
                    axes.fill_between(x / unit, mean - std, mean + std, color=look["color"], alpha=0.15, linewidth=0)
            if label in published:
                place = over_rounds.get_yaxis_transform()
                over_rounds.plot(
                    [1.0], [published[label]], marker="<", color=look["color"], transform=place, clip_on=False
                )
        over_rounds.xaxis.set_major_locator(MaxNLocator(integer=True))
        over_rounds.set(xlabel="round", ylabel="test accuracy, %")
        over_bytes.set(xlabel="sent in total, MB")
        over_bytes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        if published:
            over_rounds.set_title("◂ at the right edge: published", fontsize=8, loc="right", color="#666")
        return svg(figure)


def _band(runs: Sequence[Recorded], along: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, mean and standard deviation of accuracy (percent) over the rounds that all runs were evaluated in."""
    table = pd.concat([run.metrics.set_index("round")[["test_accuracy", "bytes_total"]] for run in runs])
    rounds = table.groupby(level=0)
    whole = rounds.size() == len(runs)
    mean = rounds.mean()[whole]
    std = rounds.test_accuracy.std(ddof=1)[whole].fillna(0.0)
    x = mean.index.to_numpy(float) if along == "round" else mean[along].to_numpy()
    return x, 100 * mean.test_accuracy.to_numpy(), 100 * std.to_numpy()


def svg(figure: Figure) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format="svg", metadata={"Date": None})
    return held.getvalue()
