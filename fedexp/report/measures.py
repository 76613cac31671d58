"""The value of a table's cell, read from one run: percent for accuracies, rounds, or a number in information.csv."""

import math

from fedexp.report.runs import Recorded
from fedexp.sweep.table import Measure


def value(measure: Measure, run: Recorded) -> float:
    """The number for the table; infinity for a target that was not reached; NaN if the run has no such value.

    For a reduction this is the final accuracy: the caller, which has both runs, takes the difference.
    """
    if measure.kind == "information":
        lines = run.information
        for column, wanted in measure.where.items():
            lines = lines[lines[column].astype(str) == wanted]
        return float(lines[measure.argument].iloc[0]) if len(lines) == 1 else math.nan
    metrics = run.metrics
    if metrics.empty:
        return math.nan
    accuracy = metrics.test_accuracy
    if measure.kind == "rounds_to":
        reached = metrics["round"][accuracy >= measure.argument]
        return math.inf if reached.empty else float(reached.iloc[0])
    if measure.kind == "best":
        within = accuracy if measure.argument is None else accuracy[metrics["round"] <= measure.argument]
        return 100 * float(within.max())
    if measure.kind == "last":
        return 100 * float(accuracy.tail(measure.argument).mean())
    return 100 * float(accuracy.iloc[-1])
