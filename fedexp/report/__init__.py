"""Runs beside what was published, and beside each other: `python -m fedexp.report`."""

from fedexp import make_callable

make_callable(__name__)
