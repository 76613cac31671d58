"""What answers at once: nothing heavy is imported before something is built."""

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "torchvision", "pandas", "matplotlib", "sklearn", "scipy", "wandb", "plotly")
COMPOSE = """
from hydra import initialize_config_dir
from fedexp.config.compose import CONF, Composer
import fedexp.main, fedexp.sweep.sweeper
with initialize_config_dir(str(CONF), version_base="1.3"):
    Composer()(["paper=fedcat", "dataset=mnist", "algorithm=fedcat", "algorithm.epsilon=0.3"])
"""
WORDS = """
import sys
sys.argv = ["fedexp", *{words!r}]
from fedexp.main import main
try:
    main()
except SystemExit as end:
    assert (end.code or 0) == {code}, end.code
"""


def imported(script):
    """Which of the heavy packages a fresh process has imported after a script."""
    script += f"\nimport sys\nprint()\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    typed = {"COMP_LINE": "fedexp algorithm=fedp", "COMP_POINT": "21", "COMP_CWORD": "1"}  # then Tab
    environment = os.environ | typed
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("script", ["import fedexp", COMPOSE], ids=["import fedexp", "composing"])
def test_nothing_heavy_is_imported_before_something_is_built(script):
    assert imported(script) == "[]"


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--cfg", "job"], 0), (["--help"], 0), (["--version"], 0), (["clints=5"], 2), (["rounds=0"], 2),
     (["algorithm=fedavg", "algorithm.mu=0.1"], 2), (["-sc", "query=bash"], 0),
     (["bench", "--help"], 0), (["study", "-h"], 0)],
)  # fmt: skip
def test_help_and_refusals_import_nothing_heavy(words, code):
    assert imported(WORDS.format(words=words, code=code)) == "[]"
