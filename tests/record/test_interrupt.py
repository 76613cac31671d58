"""Signals within a run; what is sent at random moments is in tests/campaign."""

import signal

import pytest
from program import FEW, result, run, same_results

WORDS = [*FEW, "rounds=3", "checkpoint_seconds=1000"]
INTERRUPTING = """import os, signal, time
def send(done):
    if done.number == 2:
        for number in {numbers}:
            os.kill(os.getpid(), number)
            time.sleep(0.05)  # until it has arrived: two at once are one
    return {{}}
"""


def sending(monkeypatch, tmp_path, *numbers):
    """The word of a measure that sends this process signals after the second round."""
    (tmp_path / "sending.py").write_text(INTERRUPTING.format(numbers=[*map(int, numbers)]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "sending", raising=False)
    return "+measures.send=sending.send"


def test_a_terminal_that_is_gone_ends_the_run_saved(monkeypatch, tmp_path, capfd):
    word = sending(monkeypatch, tmp_path, signal.SIGHUP)
    assert run(monkeypatch, tmp_path / "out", *WORDS, word) == 129
    assert result(tmp_path / "out")["status"] == "interrupted" and "Traceback" not in capfd.readouterr().err
    assert run(monkeypatch, tmp_path / "out", *WORDS, word) == 0
    assert run(monkeypatch, tmp_path / "whole", *WORDS) == 0
    assert same_results(tmp_path / "whole", tmp_path / "out")


def test_under_nohup_the_run_goes_on(monkeypatch, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(monkeypatch, tmp_path / "out", *WORDS, sending(monkeypatch, tmp_path, signal.SIGHUP)) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_ctrl_c_ends_without_a_traceback_however_often(monkeypatch, tmp_path, capfd, times):
    word = sending(monkeypatch, tmp_path, *[signal.SIGINT] * times)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    try:
        assert run(monkeypatch, tmp_path / "out", *WORDS, word) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    said = capfd.readouterr()
    assert "Traceback" not in said.err + said.out and "interrupted; the same command goes on" in said.err
    assert (result(tmp_path / "out")["status"] == "interrupted") == (times == 1)
