"""Comparing runs with published values and with each other: `python -m fedexp report`."""

from fedexp import make_callable

make_callable(__name__)
