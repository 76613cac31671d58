"""Whether measured values rank like published ones: pure functions of numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import pandas as pd

from fedexp.report.page import NOTHING

Name = TypeVar("Name")


def ranked(values: Mapping[Name, float], higher_is_better: bool) -> list[Name]:
    """Names from best to worst, without those that have no number."""
    known = {name: value for name, value in values.items() if not math.isnan(value)}
    return sorted(known, key=lambda name: known[name], reverse=higher_is_better)


def winner(values: Mapping[str, float], higher_is_better: bool) -> str:
    """The best name; "a tie of n" if n are equal; NOTHING for fewer than two values."""
    order = ranked(values, higher_is_better)
    if len(order) < 2:
        return NOTHING
    best = [name for name in order if values[name] == values[order[0]]]
    return best[0] if len(best) == 1 else f"a tie of {len(best)}"


def marks(values: Mapping[Name, float], shown: Mapping[Name, str], higher_is_better: bool) -> dict[Name, str]:
    """The names that are best or second best; values that are shown alike count as equal. Empty for fewer than two."""
    order = ranked(values, higher_is_better)
    places = list(dict.fromkeys(shown[name] for name in order))
    if len(places) < 2:
        return {}
    found = {name: "best" for name in order if shown[name] == places[0]}
    if len(places) > 2 and len(found) == 1:
        found |= {name: "second" for name in order if shown[name] == places[1]}
    return found


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's correlation of (measured, published); NaN for fewer than three pairs or without variation."""
    known = pd.DataFrame(pairs, columns=["measured", "published"]).dropna()
    if len(known) < 3 or known.nunique().min() < 2:
        return math.nan
    ranks = known.rank()
    return float(ranks["measured"].corr(ranks["published"]))
