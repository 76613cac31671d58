"""Tests import their small worlds from worlds.py beside this file."""

_LONGEST = ("test_run.py", "test_sweep.py", "test_published.py")


def pytest_collection_modifyitems(items):
    """The longest files first: the core that took one of them last would keep the others waiting."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)
