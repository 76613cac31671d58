"""Signals at random moments: a run ends at once, without a traceback or a process left, and goes on to the same end."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from command_lines import of_option
from program import SMALL, fork, run, same_results

from fedexp.config.options import CONF

WORDS = [*SMALL, "rounds=8", "hardware.workers=2", "checkpoint_seconds=0"]
SIGNALS = {
    "Ctrl-C": [signal.SIGINT], "Ctrl-C twice": [signal.SIGINT] * 2, "SIGTERM": [signal.SIGTERM],
    "SIGHUP": [signal.SIGHUP], "SIGKILL": [signal.SIGKILL],
}  # fmt: skip
pytestmark = pytest.mark.slow
COUNT = int(os.environ.get("FEDEXP_CAMPAIGN", 40))  # attacks of each kind
LONGEST = 10  # seconds until a signal has ended the program


def test_signals_at_random_moments(monkeypatch, tmp_path, draw, tally):
    began = time.monotonic()
    assert job(tmp_path / "first").wait() == 0
    lasts = time.monotonic() - began
    assert run(monkeypatch, tmp_path / "whole", *WORDS) == 0
    for number in range(COUNT):
        name, after = draw.choice([*SIGNALS]), draw.uniform(0, lasts)
        wrong = attempt(monkeypatch, tmp_path / str(number), SIGNALS[name], after, tmp_path / "whole")
        tally("signals", f"{name} after {after:.2f} s", wrong)


def job(root: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "fedexp", *WORDS, f"output_root={root}"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip


def attempt(monkeypatch, root, numbers, after, whole):
    """What was wrong with how a run ended, and went on; None for nothing."""
    process = job(root)
    time.sleep(after)
    sent = time.monotonic()
    for number in numbers:
        if process.poll() is None:
            os.killpg(process.pid, number)  # as a terminal does
    said, _ = process.communicate(timeout=300)
    took = time.monotonic() - sent
    if process.returncode not in (0, *(-number for number in numbers), *(128 + number for number in numbers)):
        return f"ended with {process.returncode}: {said}"
    if "Traceback" in said:
        return f"showed a traceback: {said}"
    if took > LONGEST:
        return f"took {took:.1f} s to end"
    if alive(process.pid):
        return "left processes behind"
    code = run(monkeypatch, root, *WORDS)
    return None if code == 0 and same_results(whole, root) else f"did not go on to the same end ({code})"


def alive(group: int) -> bool:
    """Whether a process of this group lives on, after a moment for those that only see that their server has gone."""
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


def test_workers_killed_and_stopped_at_random_moments(monkeypatch, tmp_path, draw, tally):
    assert run(monkeypatch, tmp_path / "whole", *WORDS) == 0
    for number in range(COUNT // 2):
        root, kills = tmp_path / str(number), 0
        process = job(root)
        while process.poll() is None and kills < 3:
            time.sleep(draw.uniform(0, 0.5))
            workers = [int(pid) for pid in children(process.pid)]
            if workers and list(root.glob("*/config.yaml")):
                kills += 1
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(workers), draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
        said, _ = process.communicate(timeout=300)
        good = process.returncode == 0 and same_results(tmp_path / "whole", root)
        wrong = None if good else f"ended with {process.returncode}"
        tally("killed and stopped workers", f"{kills} of them", wrong, said)


def children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []


@pytest.mark.parametrize("algorithm", sorted({path.stem for path in (CONF / "algorithm").glob("*.yaml")} - {"own"}))
def test_sigterm_ends_every_algorithm_soon(tmp_path, draw, tally, algorithm):
    words = [word for word in of_option("algorithm", algorithm) if not word.startswith(("rounds=", "hardware.workers"))]
    process = fork(tmp_path, *words, "dataset.train=1000", "rounds=5000", "hardware.workers=2", "local.epochs=5")
    time.sleep(after := draw.uniform(0.5, 4))
    sent = time.monotonic()
    process.terminate()
    process.join(60)
    took = time.monotonic() - sent
    good = process.exitcode in (143, -signal.SIGTERM) and took <= LONGEST
    wrong = None if good else f"ended with {process.exitcode} in {took:.1f} s"
    tally("SIGTERM by algorithm", f"{algorithm} after {after:.1f} s", wrong)
    process.kill()
