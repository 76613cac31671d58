"""What answers at once: nothing heavy is imported before something is built."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "torchvision", "pandas", "matplotlib", "sklearn", "scipy", "wandb", "plotly")
LINES = [
    (["--cfg", "job"], 0), (["--help"], 0), (["--version"], 0), (["clints=5"], 2), (["rounds=0"], 2),
    (["algorithm=fedavg", "algorithm.mu=0.1"], 2), (["-sc", "query=bash"], 0),
    (["bench", "--help"], 0), (["study", "-h"], 0),
]  # fmt: skip
# Each command line is carried out in a copy of the one process that has imported the program and nothing else yet.
SCRIPT = f"""
import json, os, sys

def tell(what):
    print()
    print(json.dumps([what, [name for name in {HEAVY!r} if name in sys.modules]]), flush=True)

def in_a_copy(what, work):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0, what
        return
    work()
    tell(what)
    sys.exit()

def compose():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        Composer()(["paper=fedcat", "dataset=mnist", "algorithm=fedcat", "algorithm.epsilon=0.3"])

def carry_out():
    try:
        main()
    except SystemExit as end:
        assert (end.code or 0) == code, end.code

import fedexp
tell("import fedexp")
from hydra import initialize_config_dir
from fedexp.config.compose import Composer
from fedexp.config.options import CONF
import fedexp.sweep.sweeper
from fedexp.main import main
in_a_copy("composing", compose)
for words, code in {LINES!r}:
    sys.argv = ["fedexp", *words]
    in_a_copy(" ".join(words), carry_out)
"""


@pytest.fixture(scope="module")
def imported():
    """Which of the heavy packages a fresh process has imported after each thing that it does."""
    typed = {"COMP_LINE": "fedexp algorithm=fedp", "COMP_POINT": "21", "COMP_CWORD": "1"}  # then Tab
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | typed)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))


@pytest.mark.parametrize("what", ["import fedexp", "composing"])
def test_nothing_heavy_is_imported_before_something_is_built(imported, what):
    assert imported[what] == []


@pytest.mark.parametrize("words", [words for words, _ in LINES], ids=" ".join)
def test_help_and_refusals_import_nothing_heavy(imported, words):
    assert imported[" ".join(words)] == []
