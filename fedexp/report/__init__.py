"""Runs beside what was published, and beside each other: `python -m fedexp.report`."""
