"""Run the program as a user does: in this process where that is enough, in its own where it must be."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import torch

from fedexp.main import main

SMALL = [
    "dataset=digits", "model=mcmahan_cnn", "model.hidden=16", "clients=20", "clients_per_round=4", "rounds=6",
    "local.epochs=1", "local.batch_size=20", "hardware=cpu", "hardware.workers=1", "tracking=none", "pictures=false",
]  # fmt: skip
# A data set whose rounds take a tenth of those of the digits, where it is of no account which one it is.
FEW = ["dataset=made", "dataset.shape=[1,8,8]", "dataset.train=600", "dataset.test=60", "partition=classes2"]


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


def fork(root: Path, *words: str) -> multiprocessing.Process:
    """The same in a copy of this process: to be killed, it need not read all modules anew."""
    return copy("fedexp", *_command_line(root, words))


def copy(*argv: str) -> multiprocessing.Process:
    """A copy of this process that carries out this command line."""
    job = multiprocessing.get_context("fork").Process(target=_main, args=([*argv],))
    job.start()
    return job


def _main(argv: list[str]) -> None:
    torch.set_num_threads(1)  # those of this process's parent are not in a copy
    sys.argv = argv
    main()


def wait_for_rounds(root: Path, count: int, job: subprocess.Popen | multiprocessing.Process) -> None:
    """Until the run in `job` has evaluated `count` rounds."""
    for _ in range(6000):
        found = list(root.glob("*/metrics.csv"))
        if found and len(found[0].read_text().splitlines()) > count:
            return
        if isinstance(job, subprocess.Popen):
            assert job.poll() is None, job.communicate()[0]
        else:
            assert job.is_alive(), f"it ended with {job.exitcode}"
        time.sleep(0.01)
    raise AssertionError("no progress in 60 s")


def _command_line(root: Path, words: tuple[str, ...]) -> list[str]:
    return [*SMALL, f"output_root={root}", *words]


def only_folder(root: Path) -> Path:
    (folder,) = [path for path in root.iterdir() if not path.name.startswith(".")]
    return folder


def result(root: Path) -> dict:
    return json.loads((only_folder(root) / "result.json").read_text())


def metrics(root: Path) -> pd.DataFrame:
    """metrics.csv without what depends on the clock."""
    table = pd.read_csv(only_folder(root) / "metrics.csv")
    return table[[name for name in table if "seconds" not in name and "per_second" not in name]]


def model(root: Path) -> dict[str, torch.Tensor]:
    return torch.load(only_folder(root) / "model.pt", weights_only=True)


def same_results(first: Path, second: Path) -> bool:
    """Metrics (without the clock) and final weights, to the bit."""
    pd.testing.assert_frame_equal(metrics(first), metrics(second), check_exact=True)
    left, right = model(first), model(second)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
