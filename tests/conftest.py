"""Tests import their small worlds from worlds.py beside this file."""

import atexit
import gc
import os
import pickle
import random
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from omegaconf import OmegaConf

gc.set_threshold(100_000, 20, 50)  # looking for garbage takes some time of every import and test

# Before PyTorch is imported: threads would wait for the tests beside these, and change rounding.
os.environ.setdefault("OMP_NUM_THREADS", "1")
_MEMORY = Path("/dev/shm")  # in memory, on Linux; a disk would make every saved file wait
if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4e9:
    os.environ["TMPDIR"], tempfile.tempdir = str(_MEMORY), None  # for this process and those that tests start

# With a GPU in sight, a process that has trained can fork no workers. xdist's processes see what the first one decided.
if "gpu" not in sys.argv and "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # only `pytest -m gpu` shows GPUs

# What runs measure of the machine is kept there, not among the user's own.
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"fedexp-tests-{os.getuid()}")
with suppress(ImportError):  # of the extras [privacy] and [tensorboard]
    from absl.logging import get_absl_handler

    # It took pytest's capturing stream for standard error, and would close it when Hydra sets logging up anew.
    get_absl_handler().python_handler.setStream(sys.__stderr__)


def _parsed_once(load):
    """OmegaConf's `load`, for which the same file is parsed only once in this process: Hydra reads some twenty files
    for each command line."""
    parsed = {}

    def load_from(file):
        found = os.fstat(file.fileno()) if hasattr(file, "fileno") else os.stat(file)
        key = found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
        if key not in parsed:
            parsed[key] = pickle.dumps(load(file))
        return pickle.loads(parsed[key])

    return load_from


OmegaConf.load = _parsed_once(OmegaConf.load)

_LONGEST = (
    "test_golden.py", "test_second_device.py", "test_published.py", "test_main.py", "test_resume.py",
    "test_sweeper.py", "test_every_combination.py", "test_wandb.py", "test_bench.py", "test_experiment.py",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """The longest files first: the core that took one of them last would keep the others waiting."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)


def pytest_collection_finish():
    """What has been imported is not looked through for garbage."""
    gc.freeze()


def pytest_sessionfinish():
    """Nor is what the tests have left, five times by pytest; once will do, and at its end Python frees it all."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # without it libraries list on the terminal what they have not seen freed


@pytest.fixture
def draw(request):
    """Random choices of a test, new ones each time; a failure shows the seed that repeats them."""
    seed = os.environ.get("FEDEXP_TEST_SEED") or str(random.SystemRandom().randrange(10**6))
    request.node.add_report_section("setup", "seed", f"FEDEXP_TEST_SEED={seed} repeats this test's random choices")
    return random.Random(f"{seed} {request.node.name}")  # another for each test that the seed is given to


@pytest.fixture
def one_thread():
    """In this process as in its copies, which have no others: threads change rounding, as where FedGen's server
    trains."""
    import torch  # only here: some tests are about what is imported

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tally(request):
    """tally(part, what, wrong, said) counts an attack by the part of the campaign that it belongs to; `wrong` is what
    did not go as it must, or None. The test fails at its end for all that went wrong; pytest's summary has the counts.
    """
    counts, failures = Counter(), []

    def count(part, what, wrong, said=""):
        counts[part, wrong is None] += 1
        if wrong is not None:
            failures.append(f"{what} {wrong}\n    {said}")

    yield count
    request.node.user_properties += [("campaign", [*key, number]) for key, number in counts.items()]
    assert not failures, "\n".join(failures)


def pytest_terminal_summary(terminalreporter):
    """How the campaign went, by part."""
    counts = Counter()
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        for name, value in getattr(report, "user_properties", ()):
            if name == "campaign" and report.when == "teardown":
                part, survived, number = value
                counts[part, survived] += number
    for part in dict.fromkeys(part for part, _ in counts):
        good, bad = counts[part, True], counts[part, False]
        terminalreporter.write_line(f"campaign: {part}: {good + bad} tried, {good} survived, {bad} failed")
