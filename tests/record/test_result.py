"""What result.json tells of a curve."""

import pytest

from fedexp.record.result import last_rounds


def test_last_rounds_are_rounds_not_rows():
    rows = [{"round": number, "test_accuracy": number / 100} for number in (5, 10, 15, 20)]
    assert last_rounds(rows) == pytest.approx(0.175)
    assert last_rounds(rows[:1]) == pytest.approx(0.05)
    every = [{"round": number, "test_accuracy": float(number)} for number in range(1, 13)]
    assert last_rounds(every) == pytest.approx(7.5)
