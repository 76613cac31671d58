"""The parts of a report, as a browser gets them."""

from fedexp.report.page import Entry


def test_lists_may_be_broken_into_lines_and_numbers_may_not():
    """A table's column of commits would otherwise be cut off at the edge of a narrow window."""
    assert 'class="main list"' in Entry("103eafa53d40, a7c1125b9a9d").html()
    assert 'class="main"' in Entry("1,000.0 ± 0.5").html()
