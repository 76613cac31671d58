"""Colours, line styles and sizes that all figures share, readable with any colour vision and in print."""

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import matplotlib as mpl

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe and Ito, 2008
_DASHES = (("-", "solid"), ("--", "dash"), (":", "dot"), ("-.", "dashdot"))  # matplotlib's and plotly's names
_STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4",
    "legend.frameon": False, "axes.axisbelow": True, "pdf.fonttype": 42,
    "text.parse_math": False, "text.usetex": False,  # a "$" or "_" in a run's name would be read as a formula
}  # fmt: skip
MAP = [[0, "#ffffff"], [1, "#08519c"]]  # for counts: from none to many
CONTRAST = "Viridis"  # for values that all matter equally


class Look(NamedTuple):
    colour: str
    dash: str
    plotly_dash: str


def look(number: int) -> Look:
    """The look of line `number`: 28 are different; the first seven differ in colour, neighbours also in style."""
    dash, plotly_dash = _DASHES[number % len(_DASHES)]
    return Look(_COLOURS[number % len(_COLOURS)], dash, plotly_dash)


def styled() -> AbstractContextManager[None]:
    """Figures are made within it, and saved: only saving chooses the fonts of a PDF, and makes the ticks."""
    return mpl.rc_context(_STYLE)


def layout(**more: Any) -> dict[str, Any]:
    """The layout of a plotly figure."""
    axis = {"gridcolor": "#e4e4e4", "zeroline": False, "linecolor": "#98a2b3", "automargin": True}
    found: dict[str, Any] = {
        "font": {"family": "system-ui, sans-serif", "size": 13}, "margin": {"t": 40, "r": 20},
        "paper_bgcolor": "white", "plot_bgcolor": "white", "xaxis": dict(axis), "yaxis": dict(axis),
    }  # fmt: skip
    for name, value in more.items():
        found[name] = {**found[name], **value} if isinstance(found.get(name), dict) else value
    return found
