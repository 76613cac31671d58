"""What is said while a run lasts, without a terminal and in one."""

import pytest
from rich.console import Console

from fedexp.record.display import Display, megabytes

ROW = {"test_accuracy": 0.5, "test_loss": 1.25, "bytes_total": 2.5e6}


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0.0 MB"), (1024, "1.0 kB"), (999_000, "999.0 kB"), (2.5e9, "2,500.0 MB")]
)
def test_bytes_of_small_models_are_in_kilobytes(count, said):
    assert megabytes(count) == said


def test_a_line_tells_round_accuracy_loss_bytes_and_the_time_that_is_left(capsys):
    with Display(2, 0, seconds_between_lines=0) as display:
        display.advance(ROW)
    assert capsys.readouterr().out == "round 1/2  accuracy 50.00%  loss 1.250  2.5 MB  ETA 0 s\n"


def test_the_closing_table_tells_when_targets_were_reached(capsys):
    Display(2, 2).summary("mine", {"rounds": 2, "rounds_to": {"0.125": 1, "0.9": None}})
    assert "│ rounds to │ 12.5%: 1, 90%: not reached │" in capsys.readouterr().out


def test_a_terminal_s_bar_labels_its_time_and_has_the_loss(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(
        "fedexp.record.display.Console", lambda **given: Console(force_terminal=True, width=100, **given)
    )
    with Display(2, 0) as display:
        display.advance(ROW)
    said = capsys.readouterr().out
    assert "ETA" in said and "loss 1.250" in said and "1/2" in said
