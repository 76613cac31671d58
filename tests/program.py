"""Run the program as a user does: in this process where that is enough, in its own where it must be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd

from fedexp.main import main

SMALL = [
    "dataset=digits", "model=mcmahan_cnn", "model.hidden=16", "clients=20", "clients_per_round=4", "rounds=6",
    "local.epochs=1", "local.batch_size=20", "hardware=cpu", "tracking=none",
]  # fmt: skip


def run(monkeypatch, root: Path, *words: str) -> int:
    """`python -m fedexp ...` in this process: its exit code."""
    monkeypatch.setattr(sys, "argv", ["fedexp", *_command_line(root, words)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def start(root: Path, *words: str) -> subprocess.Popen:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "fedexp", *_command_line(root, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("WANDB_SERVICE", None)  # a user's next process does not share this one's wandb service
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip


def _command_line(root: Path, words: tuple[str, ...]) -> list[str]:
    """Flags, then overrides: Hydra's parser takes no flag between them."""
    flags = [word for word in words if word.startswith("-")]
    return [*flags, *SMALL, f"output_root={root}", *(word for word in words if word not in flags)]


def only_folder(root: Path) -> Path:
    (folder,) = [path for path in root.iterdir() if not path.name.startswith(".")]
    return folder


def result(root: Path) -> dict:
    return json.loads((only_folder(root) / "result.json").read_text())


def metrics(root: Path) -> pd.DataFrame:
    """metrics.csv without what depends on the clock."""
    table = pd.read_csv(only_folder(root) / "metrics.csv")
    return table[[name for name in table if "seconds" not in name and "per_second" not in name]]
