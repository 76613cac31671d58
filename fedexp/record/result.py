"""The content of result.json besides the run's own counts: the curve in a few numbers, versions and commit."""

import math
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import fedexp
from fedexp.errors import nearest, require
from fedexp.record.status import Status


def last_rounds(rows: list[dict[str, Any]]) -> float:
    """Mean test accuracy over the evaluated ones of the last 10 communication rounds."""
    recent = [row["test_accuracy"] for row in rows if row["round"] > rows[-1]["round"] - 10]
    return sum(recent) / len(recent)


def summary(rows: list[dict[str, Any]], targets: list[float]) -> dict[str, Any]:
    """Final and best accuracy, the clients' accuracies at the end, where they were evaluated, and the first evaluated
    round that reached each target (None: not reached)."""
    last = rows[-1] if rows else {}
    best = max(rows, key=lambda row: row["test_accuracy"], default={})
    reached = {str(target): next((row for row in rows if row["test_accuracy"] >= target), {}) for target in targets}
    simulated = {}
    if "simulated_seconds" in last:
        needed = {target: row.get("simulated_seconds") for target, row in reached.items()}
        simulated = {"simulated_seconds": last["simulated_seconds"], "simulated_seconds_to": needed}
    return {
        "rounds": last.get("round", 0),
        "final_accuracy": last.get("test_accuracy"),
        "best_accuracy": best.get("test_accuracy"),
        "best_round": best.get("round"),
        "accuracy_last10": last_rounds(rows) if rows else None,
        **{name: each for name, each in last.items() if name.startswith("client_accuracy") and math.isfinite(each)},
        "rounds_to": {target: row.get("round") for target, row in reached.items()},
        **simulated,
        "samples_per_second": last.get("samples_per_second"),
    }


def value(result: dict[str, Any], metric: str) -> float:
    """A number of a result by its name: best_accuracy, seconds, rounds_to.0.8 (infinite where the target was not
    reached, which is worse than any number of rounds). Raises ConfigError if the result has no such number."""
    known = {key: each for key, each in result.items() if isinstance(each, int | float) and not isinstance(each, bool)}
    for cost in ("rounds_to", "simulated_seconds_to"):
        reached = result.get(cost, {}).items()
        known |= {f"{cost}.{target}": math.inf if each is None else each for target, each in reached}
    require(metric in known, "metric", metric, f"is not a number in this run's result.json; {nearest(metric, known)}")
    return float(known[metric])


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a folder's metrics.csv, with exactly the values that were written; none if it cannot be read, or if
    columns are missing, or hold other things than numbers, that every run has."""
    import pandas as pd  # only here: asking whether a run is done needs no pandas

    try:
        table = pd.read_csv(folder / "metrics.csv", float_precision="round_trip")
    except (OSError, ValueError):
        return []
    numbers = {*table.select_dtypes("number")}  # a column with a damaged value holds texts
    if not {"round", "test_accuracy"} <= numbers:
        return []
    return [{name: value for name, value in row.items() if value == value} for row in table.to_dict("records")]


def ends(rows: list[dict[str, Any]]) -> list[int]:
    """The rounds after which the run could have ended: those evaluated in its last stage."""
    return [row["round"] for row in rows if row.get("stage") == rows[-1].get("stage")]


def first_rounds(
    rounds: int, rows: list[dict[str, Any]], result: dict[str, Any], targets: list[float]
) -> dict[str, Any]:
    """The result after the first `rounds` rounds, one of `ends(rows)`, given the rows and the result of more rounds.
    What its algorithm adds, and whether it is at chance, is left out."""
    rows = [row for row in rows if row["round"] <= rounds]
    totals: dict[str, Any] = {
        name: rows[-1][name] for name in ("bytes_up", "bytes_down", "seconds") if name in rows[-1]
    }
    same = ("emd", "seed", "fingerprint", "partition_hash", "examples", "versions", "commit", "convolution_tiles")
    kept = {name: result[name] for name in same if name in result}
    return {"status": Status.FINISHED, **summary(rows, targets), **totals, **kept}


def versions() -> dict[str, str]:
    import torch

    return {"fedexp": fedexp.__version__, "torch": torch.__version__, "python": platform.python_version()}


def commit() -> str | None:
    """The commit of the running source checkout, with + if it has changes; None for an installed wheel."""
    try:
        return _checked_out()
    except (OSError, subprocess.SubprocessError):
        return None


@cache  # what a process has imported stays what it is, even if the checkout moves on
def _checked_out() -> str:
    place = Path(fedexp.__file__).parent
    ask = ["git", "-C", str(place), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    return subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
