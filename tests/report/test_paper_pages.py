"""A page a paper: the tables of which runs of its protocol measured some cell."""

import pytest
from composing import asked
from recorded import leave_run

from fedexp.cli import carry_out
from fedexp.report.paper_pages import paper_pages
from fedexp.report.runs import read

ROWS = "^(mnist|cifar10) dir0.1"


@pytest.fixture
def runs(tmp_path):
    """Two cells of FedCat's table 3, one of them for fewer rounds than the protocol has; and a run of no paper."""
    (sweep,) = asked("+table=fedcat_3", f'table.select="{ROWS}"', f"output_root={tmp_path}")
    whole, short = (next(job for job in sweep.jobs if job.cell.column == name) for name in ("fedavg", "fedcat"))
    leave_run(whole, [0.2, 0.5])  # published: 51.01
    leave_run(short, [0.2, 0.3], rounds=20)
    (other,) = asked("seed=3", f"output_root={tmp_path}")
    leave_run(other.jobs[0], [0.4])
    return tmp_path


def test_a_paper_that_was_followed_has_a_page_with_its_measured_tables(runs):
    (page,) = paper_pages(read(runs))
    assert (page.name, page.title) == ("fedcat", "FedCat: measured beside published")
    assert {sheet.title.partition(":")[0] for sheet in page.sheets} >= {"FedCat, table 3"}
    found = page.records[page.records["table"] == "fedcat_3"].dropna(subset="measured")
    assert found["column"].tolist() == ["fedavg", "fedcat"]
    assert found["rounds"].tolist() == [1000, 20]
    (said,) = [line for line in page.lead if "for all rounds" in line and "1 cells" in line][:1]
    assert "1 of them are within 1.5 points" in said


def test_the_command_writes_it_beside_a_page_for_each_data_set(runs, capsys):
    assert carry_out("report", [str(runs)]) == 0
    assert "fedcat/fedcat.{md," in capsys.readouterr().out
    written = (runs / "reports" / "fedcat" / "fedcat.md").read_text()
    assert "FedCat, table 3" in written and "![" in written and ".png)" in written
    assert (runs / "reports" / "runs_digits" / "runs_digits.md").exists()


def test_runs_of_no_paper_have_no_page(tmp_path):
    (sweep,) = asked("seed=3", f"output_root={tmp_path}")
    leave_run(sweep.jobs[0], [0.4])
    assert list(paper_pages(read(tmp_path))) == []
