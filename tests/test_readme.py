"""README.md's command lines: Hydra reads their words, and every run that they stand for composes."""

import os
import re
import shlex
from pathlib import Path

import pytest
from hydra import initialize_config_dir

from fedexp.compose import Composer
from fedexp.jobs import sweeps
from fedexp.main import CONF

README = Path(__file__).parent.parent / "README.md"
COMMAND = re.compile(r"(?:PYTHONPATH=\. )?python -m fedexp(?:\.[a-z.]+)? (.*)")


def commands():
    """The words of each command in a code block, as a shell passes them on; flags and folders left out."""
    code = "\n".join(line.strip() for line in README.read_text().splitlines() if line.startswith("    "))
    for line in code.replace("\\\n", "").splitlines():
        if found := COMMAND.fullmatch(line):
            words = [os.path.expandvars(word) for word in shlex.split(found[1], comments=True)]
            yield [word for word in words if "=" in word or word.startswith("~")]


@pytest.fixture(scope="module")
def composer():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield Composer()


def composing():
    """What they compose, each once: launchers and the report's spelling of a table make no difference."""
    for words in commands():
        yield tuple(f"+{word}" if word.startswith("table=") else word for word in words if not word.startswith("hydra"))


@pytest.mark.parametrize("words", list(dict.fromkeys(composing())), ids=" ".join)
def test_a_command_composes(composer, words):
    assert composer.parse(words)
    once = ["table.seeds=[0]"] if any(word.startswith("+table=") for word in words) else []
    jobs = [job for each in sweeps([*words, *once], composer) for job in each.jobs]
    assert jobs
    assert [job.error for job in jobs if job.config is None] == []


def test_all_of_them_are_found():
    found = list(commands())
    assert len(found) >= 17
    assert ["partition=shards2", "clients=10"] in found
    assert "+dataset.source='JPEG copy'" in next(words for words in found if "~dataset.download" in words)
