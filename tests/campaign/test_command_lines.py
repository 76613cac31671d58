"""Bad command lines by the thousand, in this process: each ends at once in one line that says what is wrong; a dry run
says it in its list of runs, or ends in such a line."""

import importlib
import pkgutil
import shutil
import time
from contextlib import suppress

import pytest
from command_lines import some

import fedexp
from fedexp.main import main

SECONDS = 2  # of this process's own time: the machine may be busy with other work


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Import everything first, or its time would count for the first command line that needs it."""
    for module in pkgutil.walk_packages(fedexp.__path__, "fedexp."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):  # of an extra
                importlib.import_module(module.name)


def attempt(monkeypatch, capfd, root, words):
    """A command line's exit code (or the exception that escaped), what it said, and how long it took."""
    monkeypatch.chdir(root.parent)  # a line may have another output_root, which is made there
    monkeypatch.setattr("sys.argv", ["fedexp", f"output_root={root}", *words])
    capfd.readouterr()
    began, code = time.process_time(), 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        code = error
    shutil.rmtree(root, ignore_errors=True)
    return code, capfd.readouterr(), time.process_time() - began


def wrong(line, code, said, seconds):
    """What is wrong with the end of a command line; None for a good one."""
    if code not in (0, 2):
        return f"ended with {code!r}"
    if code == 0:
        return "was accepted" if line.sure else None
    refusal = [each for each in said.err.splitlines() if each.strip()]
    if len(refusal) != 1 or not refusal[0].startswith("fedexp: ") or "Traceback" in said.out:
        return f"ended in {len(refusal)} lines"
    if line.sure and line.named not in refusal[0]:
        return f"does not name {line.named}"
    if seconds > SECONDS:
        return f"took {seconds:.1f} s"
    return None


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 11))])
def test_a_bad_command_line_ends_in_one_line(monkeypatch, capfd, tmp_path, draw, tally, part):
    for line in some(150 if part else 4, draw, every_option=part > 0):
        end = attempt(monkeypatch, capfd, tmp_path / "out", line.words)
        tally("bad command lines", line.words, wrong(line, *end), end[1].err[-500:])


def missed(line, code, said):
    """What is wrong with the end of a bad line's dry run; None for one that lists the run as refused, or refuses it."""
    if code not in (0, 1, 2):
        return f"ended with {code!r}"
    if code == 1 and "refused: " not in said.out:
        return "failed without a refused run"
    if code:
        return None if said.err.startswith("fedexp: ") and len(said.err.splitlines()) == 1 else "ended in many lines"
    several = line.words[-1].endswith(("=1,2", "choice(1,2)", "choice(none,x)"))  # in a sweep it stands for runs
    return "was accepted" if line.sure and not several else None


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 4))])
def test_a_dry_run_tells_a_bad_command_line(monkeypatch, capfd, tmp_path, draw, tally, part):
    for line in some(150 if part else 4, draw, every_option=part > 0):
        code, said, _ = attempt(monkeypatch, capfd, tmp_path / "out", [*line.words, "--dry-run"])
        tally("bad dry runs", line.words, missed(line, code, said), said.err[-500:])
