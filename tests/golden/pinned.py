"""What a case's run leaves behind in numbers, and how they differ from those in golden.csv."""

import csv
import io
import json
import math
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

LEAF = "dataset.root=${output_root}/leaf"  # the word of a command line for which a folder in LEAF's format is made

_FILE = Path(__file__).parent / "golden.csv"
# Relative: processors add in different orders. Without fused multiply-add (x86 before AVX2) PyTorch also draws other
# initial weights, which are in single precision: these numbers do not hold there.
_TOLERANCE = 1e-10
_EXACT = ("bytes_up", "bytes_down", "partition_hash")
_MEASURED = (
    "test_accuracy", "test_loss", "local_loss", "divergence_mean", "divergence_max", "cohort_emd",
    "reference_divergence", "received_accuracy_mean", "assigned_accuracy", "clusters", "similarity_mse",
    "client_accuracy_mean", "client_accuracy_mean/global", "client_accuracy_mean/tuned_1",
)  # fmt: skip

Numbers = dict[str, str]  # a value for each quantity, as golden.csv spells it


def run(words: list[str], root: Path) -> Path:
    """Do in this process what `python -m fedexp WORDS` does, below `root`; the run's folder.

    All that these tests know of fedexp's inside is here.
    """
    from fedexp.config.compose import composed
    from fedexp.experiment import run

    with redirect_stdout(io.StringIO()):
        run(composed([*words, f"output_root={root}"], _composer()))
    (result,) = root.glob("*/result.json")
    return result.parent


@cache
def _composer() -> Any:
    """One for all cases, which choose many of the same files."""
    from fedexp.config.compose import Composer

    return Composer()


def numbers(words: list[str]) -> Numbers:
    """The quantities of a command line's run. Raises RuntimeError unless it finishes."""
    with TemporaryDirectory() as place:
        if LEAF in words:
            _write_leaf(Path(place) / "leaf")
        folder = run(words, Path(place))
        result = json.loads((folder / "result.json").read_text())
        *_, last = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
        found = _sums(torch.load(folder / "model.pt", weights_only=True))
    if result["status"] != "finished":
        raise RuntimeError(f"the run of {' '.join(words)} is {result['status']}")
    found |= {name: last[name] for name in _MEASURED if last.get(name)}  # a stage's rows may lack another's columns
    return found | {name: str(result[name]) for name in _EXACT}


def _sums(params: dict[str, torch.Tensor]) -> Numbers:
    """Of all trained entries, and of all running statistics: the sum, that of squares and that with random signs."""
    found = {}
    for kind in ("weights", "statistics"):
        names = [name for name in sorted(params) if ("running_" in name) == (kind == "statistics")]
        if names:
            flat = np.concatenate([params[name].double().flatten().numpy() for name in names])
            signs = np.random.default_rng(0).choice(np.array([-1, 1], dtype=np.int8), len(flat))
            sums = {"sum": flat.sum(), "squares": (flat * flat).sum(), "signed_sum": (flat * signs).sum()}
            found |= {f"{kind}_{name}": repr(float(value)) for name, value in sums.items()}
    return found


def _write_leaf(root: Path) -> None:
    """Seven writers of 3 to 9 made-up characters, and two each to test on."""
    draw = np.random.default_rng(0)
    for part, sizes in (("train", range(3, 10)), ("test", [2] * 7)):
        (root / part).mkdir(parents=True)
        pixels = [(draw.integers(0, 256, (size, 784)) / 255).tolist() for size in sizes]
        users = {f"writer{k}": {"x": x, "y": draw.integers(0, 62, len(x)).tolist()} for k, x in enumerate(pixels)}
        (root / part / "all.json").write_text(json.dumps({"user_data": users}))


def read() -> dict[str, Numbers]:
    """golden.csv: the quantities of each case."""
    cases: dict[str, Numbers] = {}
    for row in csv.DictReader(_FILE.read_text().splitlines()):
        cases.setdefault(row["case"], {})[row["quantity"]] = row["value"]
    return cases


def write(cases: dict[str, Numbers]) -> None:
    """Put them into golden.csv: a row for each case and quantity, so that two versions are easily compared."""
    with _FILE.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["case", "quantity", "value"])
        rows.writerows([case, *pair] for case, found in cases.items() for pair in found.items())


def differences(old: Numbers, new: Numbers, tolerance: float = _TOLERANCE) -> dict[str, str]:
    """By quantity how it has changed, whether it was added or is gone. Bytes and partitions are compared exactly."""
    changed = {}
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name), new.get(name)
        change = _change(before, now)
        if change > (0 if name in _EXACT else tolerance):
            changed[name] = f"{before or 'nothing'} -> {now or 'nothing'} (relative change {change:.1e})"
    return changed


def _change(before: str | None, now: str | None) -> float:
    """Relative to the larger one, or to 1e-6 where both are smaller; infinite unless both are numbers."""
    if before == now:
        return 0.0
    try:
        first, second = float(before), float(now)
    except (TypeError, ValueError):
        return math.inf
    return abs(second - first) / max(abs(first), abs(second), 1e-6)
