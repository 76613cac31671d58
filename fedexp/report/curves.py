"""Accuracy over rounds, bytes and seconds: one line per group, mean and band over its runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedexp.report.page import Picture
from fedexp.report.results import clock_of
from fedexp.report.runs import Recorded
from fedexp.report.style import layout, look, styled

_ALONG = {"round": ("round", 1.0), "bytes": ("sent in both directions, MB", 1e6), "seconds": ("seconds", 1.0)}
_WIDTH = 11  # of a figure for print, in inches
_FEW = 12  # evaluated rounds up to which each is a marker


@dataclass(frozen=True)
class Line:
    """One group's curve: mean and standard deviation of test accuracy (percent) over its runs, in the rounds in which
    all were evaluated; along: the positions of these rounds on each axis. look: a number for style.look. diverged: how
    many runs diverged, which ends the curve. published: the printed final accuracy, if there is one."""

    label: str
    look: int
    along: dict[str, np.ndarray]
    mean: np.ndarray
    std: np.ndarray
    runs: int
    diverged: int = 0
    published: float | None = None

    @property
    def end(self) -> dict[str, np.ndarray]:
        """The position of the last point on each axis, empty if there is none."""
        return {name: x[-1:] for name, x in self.along.items()}

    @property
    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """One standard deviation below and above the mean, where accuracies can be."""
        return np.maximum(self.mean - self.std, 0.0), np.minimum(self.mean + self.std, 100.0)


def picture(
    name: str, title: str, groups: Mapping[str, Sequence[Recorded]], published: Mapping[str, float],
    looks: Mapping[str, int], group: str = "",
) -> Picture:  # fmt: skip
    """The curves of groups by label. published: final accuracies (percent); looks: numbers for style.look; by label.

    Where some runs have a simulated clock, the others have no place on the axis of seconds.
    """
    simulated = any(clock_of(run) == "simulated_seconds" for runs in groups.values() for run in runs)
    column = "simulated_seconds" if simulated else "seconds"
    clock = (
        "seconds of a simulated network and its devices" if simulated else "seconds of the machine that made the run"
    )

    @cache  # files are read once, when the first of the two figures is drawn
    def known() -> list[Line]:
        return [_line(label, looks[label], runs, column, published.get(label)) for label, runs in groups.items()]

    return Picture(name, title, lambda: _chart(known(), clock), lambda: _figure(known(), clock), group)


def _line(label: str, number: int, runs: Sequence[Recorded], seconds: str, published: float | None) -> Line:
    columns = {"round": "round", "accuracy": "test_accuracy", "bytes": "bytes_total", "seconds": seconds}
    tables = [pd.DataFrame({name: run.curve.get(column, math.nan) for name, column in columns.items()}) for run in runs]
    rounds = pd.concat(tables).groupby("round")
    whole = rounds.size() == len(runs)
    mean, std = rounds.mean()[whole], rounds["accuracy"].std(ddof=1)[whole].fillna(0.0)
    along = {name: mean.reset_index()[name].to_numpy(float) / unit for name, (_, unit) in _ALONG.items()}
    accuracy, deviation = 100 * mean["accuracy"].to_numpy(), 100 * std.to_numpy()
    diverged = sum(run.diverged for run in runs)
    return Line(label, number, along, accuracy, deviation, len(runs), diverged, published)


def _axis(name: str, clock: str) -> str:
    return clock if name == "seconds" else _ALONG[name][0]


def _figure(lines: Sequence[Line], clock: str) -> Figure:
    """Three panels, for print."""
    with styled():
        abreast = _abreast([line.label for line in lines])
        below = 0.55 + 0.2 * -(-len(lines) // abreast)  # inches: the axis and the legend
        figure = Figure(figsize=(_WIDTH, 3 + below))  # laid out by hand: a layout engine takes longer than all else
        figure.subplots_adjust(left=0.055, right=0.99, top=0.93, bottom=below / (3 + below), wspace=0.06)
        panels = figure.subplots(1, len(_ALONG), sharey=True)
        for name, axes in zip(_ALONG, panels):
            for line in lines:
                own, x = look(line.look), line.along[name]
                few = "o" if len(x) < _FEW else None
                axes.plot(x, line.mean, own.dash, color=own.colour, label=line.label, lw=1.5, marker=few, ms=3)
                if line.runs > 1:
                    axes.fill_between(x, *line.band, color=own.colour, alpha=0.15, linewidth=0)
                if line.diverged:
                    axes.plot(line.end[name], line.mean[-1:], "X", color=own.colour, ms=7)
                if line.published is not None and name == "round":
                    edge = {"transform": axes.get_yaxis_transform(), "clip_on": False}
                    axes.plot([1.0], [line.published], "<", color=own.colour, **edge)
            axes.set(xlabel=_axis(name, clock))
        panels[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[0].set(ylabel="test accuracy, %")
        marks = ["\u2716: a run diverged"] if any(line.diverged for line in lines) else []
        marks += ["\u25c2 at the right edge: published"] if any(line.published is not None for line in lines) else []
        if marks:
            panels[0].set_title("   ".join(marks), fontsize=8, loc="right", color="#666")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=abreast, fontsize=8)
        return figure


def _abreast(labels: Sequence[str]) -> int:
    """How many entries of the legend fit side by side: at most five. In its type a character is some 0.07 inches wide,
    and the line beside a label 0.6."""
    widest = 0.6 + 0.07 * max(map(len, labels))
    return max(1, min(5, int(_WIDTH / widest)))


def _chart(lines: Sequence[Line], clock: str) -> dict[str, Any]:
    """One panel; buttons choose its x-axis, the legend chooses the lines that are shown."""
    traces = [pair for line in lines for pair in _traces(line)]
    along = {name: [x[name] for _, x in traces] for name in _ALONG}
    buttons = [
        {"label": name, "method": "update", "args": [{"x": along[name]}, {"xaxis.title.text": _axis(name, clock)}]}
        for name in _ALONG
    ]
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02,
            "yanchor": "bottom", "showactive": True}  # fmt: skip
    return {
        "data": [{**trace, "x": x["round"]} for trace, x in traces],
        "layout": layout(
            xaxis={"title": {"text": _axis("round", clock)}}, yaxis={"title": {"text": "test accuracy, %"}},
            updatemenus=[menu], height=460 + 22 * (len(lines) // 4), hovermode="closest", margin={"t": 60},
            legend={"orientation": "h", "yanchor": "top", "y": -0.18, "x": 0},
        ),
    }  # fmt: skip


def _traces(line: Line) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """A line's plotly traces (band, mean, published value), each with its x values for every axis."""
    own = look(line.look)
    shared = {"legendgroup": line.label, "name": line.label}
    found = []
    if line.runs > 1:
        around = {name: np.concatenate([x, x[::-1]]) for name, x in line.along.items()}
        low, high = line.band
        y = np.concatenate([high, low[::-1]])
        found.append((
            {**shared, "y": y, "mode": "lines", "line": {"width": 0}, "fill": "toself", "fillcolor": own.colour,
             "opacity": 0.15, "hoverinfo": "skip", "showlegend": False}, around,
        ))  # fmt: skip
    text = [
        f"round {int(n)}: {mean:.2f} %" + (f" \u00b1 {std:.2f} over {line.runs} runs" if line.runs > 1 else "")
        for n, mean, std in zip(line.along["round"], line.mean, line.std)
    ]
    mode = "lines+markers" if len(line.mean) < _FEW else "lines"
    found.append((
        {**shared, "y": line.mean, "mode": mode, "line": {"color": own.colour, "dash": own.plotly_dash, "width": 2},
         "text": text, "hovertemplate": "%{text}<br>%{x:.4~g}<extra>%{fullData.name}</extra>"}, line.along,
    ))  # fmt: skip
    if line.diverged:
        said = f"{line.diverged} of {line.runs} runs diverged<extra>%{{fullData.name}}</extra>"
        found.append((
            {**shared, "y": line.mean[-1:], "mode": "markers", "showlegend": False,
             "marker": {"symbol": "x", "size": 10, "color": own.colour},
             "hovertemplate": said}, line.end,
        ))  # fmt: skip
    if line.published is not None and len(line.mean):
        found.append((
            {**shared, "y": [line.published], "mode": "markers", "showlegend": False,
             "marker": {"symbol": "triangle-left", "size": 11, "color": own.colour},
             "hovertemplate": "published: %{y:.2f} %<extra>%{fullData.name}</extra>"}, line.end,
        ))  # fmt: skip
    return found
