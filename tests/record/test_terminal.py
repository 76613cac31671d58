"""A terminal that is gone ends nothing."""

import io
import os
import sys

import pytest

from fedexp.record.terminal import lasting_output


@pytest.mark.parametrize("kind", ["full", "closed pipe", "closed by the program", "closed"])
def test_what_nobody_can_be_told_ends_nothing(monkeypatch, kind):
    if kind == "full":
        lost = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", buffering=1)
    elif kind == "closed pipe":
        ours, theirs = os.pipe()
        os.close(ours)
        lost = os.fdopen(theirs, "w", buffering=1)
    elif kind == "closed by the program":
        lost = io.StringIO()
        lost.close()
    else:
        lost = None
    monkeypatch.setattr(sys, "stdout", lost)
    with lasting_output():
        for _ in range(3):
            print("x" * 10_000, flush=True)
    assert sys.stdout is lost
    if lost is not None:
        lost.close()  # nothing is held back that could not be written


def test_what_can_be_told_is_told(capsys):
    with lasting_output():
        print("one")
        assert not sys.stdout.isatty()
    assert capsys.readouterr().out == "one\n"


def test_output_is_guarded_once_for_runs_in_several_threads(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    first, second = lasting_output(), lasting_output()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert sys.stdout is stream
