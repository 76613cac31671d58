"""What result.json says besides what the run itself counts: the curve in a few numbers, and what made it."""

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import fedexp
from fedexp.measure.accuracy import last_rounds


def summary(rows: list[dict[str, Any]], targets: list[float]) -> dict[str, Any]:
    """Final and best accuracy, and the first evaluated round that reached each target (None: not reached)."""
    scores = [row["test_accuracy"] for row in rows]
    best = max(range(len(scores)), key=scores.__getitem__, default=None)
    return {
        "rounds": rows[-1]["round"] if rows else 0,
        "final_accuracy": scores[-1] if scores else None,
        "best_accuracy": scores[best] if scores else None,
        "best_round": rows[best]["round"] if scores else None,
        "accuracy_last10": last_rounds(rows) if rows else None,
        "rounds_to": {
            str(target): next((row["round"] for row in rows if row["test_accuracy"] >= target), None)
            for target in targets
        },
        "samples_per_second": rows[-1]["samples_per_second"] if rows else None,
    }


def versions() -> dict[str, str]:
    return {"fedexp": fedexp.__version__, "torch": torch.__version__, "python": platform.python_version()}


def commit() -> str | None:
    """The commit of the source checkout that runs, with + where it has changes; None for an installed wheel."""
    place = Path(fedexp.__file__).parent
    ask = ["git", "-C", str(place), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
