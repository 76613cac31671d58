"""What result.json tells of a curve."""

import pytest

from fedexp.record.result import last_rounds


def test_last_rounds_are_rounds_not_rows():
    rows = [{"round": round, "test_accuracy": round / 100} for round in (5, 10, 15, 20)]
    assert last_rounds(rows) == pytest.approx(0.175)
    assert last_rounds(rows[:1]) == pytest.approx(0.05)
    every = [{"round": round, "test_accuracy": float(round)} for round in range(1, 13)]
    assert last_rounds(every) == pytest.approx(7.5)
