"""Reading runs from their folders, of which some may be damaged, or written by anybody."""

import csv
import json
import logging
import os
import pickle
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import fedexp
from fedexp.config.fingerprint import fingerprint, relevant
from fedexp.config.schema import ADDED, flat, lacking
from fedexp.errors import ConfigError
from fedexp.record.status import DONE, Status
from fedexp.report.runs import LOST, Recorded

log = logging.getLogger(__name__)

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LAST_BYTES = 2**16  # of metrics.csv, in which its last row lies
_MOST = 5000  # the most characters in a line of a config, and the most brackets in all of it
_NUMBERS = ("rounds", "final_accuracy", "best_accuracy", "bytes_up", "bytes_down", "seconds", "emd")  # of result.json


def read(*places: Path) -> list[Recorded]:
    """The run in each folder, or all runs in folders below it, each once. Folders that are no runs are left out, with a
    warning. Raises ConfigError for a place that no folder can have.

    Files are read as they are: their interpolations are not resolved, and no module is imported because they name it.
    """
    found: dict[Path, Path] = {}
    for place in places:
        own = place / "config.yaml"
        try:
            for path in [own] if own.exists() else sorted(place.glob("*/config.yaml")):
                found.setdefault(path.resolve(), path)
        except OSError as error:  # a name that is too long
            raise ConfigError("", str(place), f"cannot be read ({error.strerror})") from error
    runs = []
    for path in found.values():
        try:
            config = _parsed(path.read_text())
        except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError):
            log.warning("%s is left out: its config.yaml cannot be read", path.parent)
            continue
        if absent := lacking(config):
            log.warning(
                "%s is left out: it was written by another version of fedexp, or is no run: its config.yaml lacks %s",
                path.parent, ", ".join(absent),
            )  # fmt: skip
            continue
        if not _are_targets(config.get("targets")):
            log.warning("%s is left out: its config.yaml has targets that are no fractions in (0, 1]", path.parent)
            continue
        result = _result(path.parent)
        if wrong := [name for name in _NUMBERS if not _possible(name, result.get(name))]:
            log.warning("%s is left out: its result.json has no number for %s", path.parent, ", ".join(wrong))
            continue
        config = {**ADDED, **config}
        if _was_edited(config, result):
            log.warning("%s: its config.yaml was changed after the run; it is read as it is now", path.parent)
        lost = result.get("status") in DONE and result.get("rounds") and not _has_curve(path.parent, result["rounds"])
        # Where a finished run is carried on to more rounds, its config and metrics.csv already tell of these.
        ended = result.get("rounds") if result.get("status") == Status.FINISHED else None
        runs.append(Recorded(path.parent, config, result, ended or config["rounds"], LOST if lost else ""))
    return runs


def _result(folder: Path) -> dict[str, Any]:
    """result.json; empty if it cannot be read: then the run is not complete."""
    try:
        found = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("status"), str) else {}


def _was_edited(config: dict[str, Any], result: dict[str, Any]) -> bool:
    """Whether the config has another fingerprint than its run had. False where that cannot be told: for runs of other
    versions, for constructors outside fedexp, which are not imported here, and for settings that are a folder or a
    file, whose fingerprint may depend on the folder in which the program was started."""
    targets = [str(value) for key, value in flat(config).items() if key.endswith("_target_")]
    versions = result.get("versions")
    same = isinstance(versions, dict) and versions.get("fedexp") == fedexp.__version__
    if not same or not all(target.startswith("fedexp.") for target in targets):
        return False
    try:
        kept, own = relevant(config), fingerprint(config)
    except (ValueError, TypeError):  # a constructor that this version does not have, or values that no run has
        return False
    has_path = "root" in kept["dataset"] or "pretrained" in kept["model"]
    return not has_path and own != result.get("fingerprint")


def _has_curve(folder: Path, rounds: int) -> bool:
    """Whether metrics.csv begins as it must and ends with a whole row of round `rounds` or a later one: thousands of
    runs need not be read whole for that."""
    try:
        with (folder / "metrics.csv").open("rb") as file:
            first = file.readline()
            file.seek(max(len(first), file.seek(0, os.SEEK_END) - _LAST_BYTES))
            last = file.read().splitlines(keepends=True)[-1:] or [b""]
        header, row = next(csv.reader([first.decode()])), next(csv.reader([last[0].decode()]))
        reached = int(row[header.index("round")]) >= rounds
    except (OSError, ValueError, LookupError, StopIteration, csv.Error):
        return False
    return reached and "test_accuracy" in header and len(row) == len(header) and last[0].endswith(b"\n")


def _are_targets(given: Any) -> bool:
    fractions = isinstance(given, list) and all(isinstance(each, int | float) and 0 < each <= 1 for each in given)
    return given is None or fractions


def _possible(name: str, value: Any) -> bool:
    most = 1 if name.endswith("accuracy") else 1e18
    return value is None or (isinstance(value, int | float) and 0 <= value <= most)


def _parsed(text: str) -> Any:
    """Parse YAML block by block: the files of a sweep share most of their blocks, and each block is parsed once."""
    deep = max(map(len, text.splitlines()), default=0) > _MOST or text.count("[") + text.count("{") > _MOST
    if deep or re.search(r"(?m)(?:^|[\s\[{,])&\w", text):  # the parser could end the process, or values grow for ever
        raise yaml.YAMLError("nested too deep, or made of references: not as fedexp writes it")
    try:
        blocks = [pickle.loads(_block(block)) for block in re.split(r"\n(?=[A-Za-z_])", text)]
        if all(isinstance(block, dict) and len(block) == 1 for block in blocks):
            return {key: value for block in blocks for key, value in block.items()}
    except yaml.YAMLError:
        pass
    return yaml.load(text, Loader=_Loader)  # as a whole: fedexp did not write it


@cache
def _block(text: str) -> bytes:
    """Pickled: no two runs share what they may change, and to copy it otherwise takes several times as long."""
    return pickle.dumps(yaml.load(text, Loader=_Loader))
