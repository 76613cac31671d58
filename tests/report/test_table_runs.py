"""The runs behind a table's cells: those that stand behind several rows are compared and drawn once."""

from composing import asked
from recorded import leave_run

from fedexp.report.comparison import compare
from fedexp.report.folders import read
from fedexp.report.paper_pages import paper_pages


def left(tmp_path, table, rows, algorithms):
    """A table's sweep, each named algorithm with a run behind each of the rows."""
    names = "|".join(algorithms)
    (sweep,) = asked(f"+table={table}", f'table.select="^({rows}) ({names})$"', f"output_root={tmp_path}")
    first = {}
    for job in sweep.jobs:
        first.setdefault((job.cell.overrides.get("partition"), job.cell.column), job)
    for job in first.values():
        leave_run(job, [0.7, 0.9])
    return sweep


def labels(page, title):
    return [[row[0].main for row in sheet.rows] for sheet in page.sheets if sheet.title.endswith(title)]


def test_rows_of_the_same_runs_are_joined(tmp_path):
    """Table 2 of CADIS asks when runs reach 80 %, and when the same ones reach 90 %."""
    page = compare(left(tmp_path, "cadis_2", "mnist to (80|90)%", ["fedavg", "cadis"]), read(tmp_path))
    joint = "mnist to 80%, mnist to 90%"
    assert labels(page, "Test accuracy") == [[f"{joint} fedavg", f"{joint} cadis"]]
    assert labels(page, "minus that of fedavg") == [[f"{joint} cadis"]]
    assert [picture.title for picture in page.pictures if "accuracy" in picture.name] == [f"{joint}: test accuracy"]
    assert [row[0].main for row in page.sheets[0].rows] == ["mnist to 80%", "mnist to 90%"]


def test_rows_of_other_runs_are_not(tmp_path):
    page = compare(left(tmp_path, "fedcat_3", "cifar10 dir0.[15]", ["fedavg", "fedcat"]), read(tmp_path))
    assert [picture.name for picture in page.pictures if "accuracy" in picture.name] == ["accuracy_1", "accuracy_2"]
    assert len(labels(page, "Test accuracy")[0]) == 4


def test_a_later_table_of_the_paper_leaves_out_what_an_earlier_one_has_drawn(tmp_path):
    """FedAvg and FedCat on CIFAR-10 stand in tables 1 and 3, with the same values; the ablation in 3 alone."""
    left(tmp_path, "fedcat_3", "cifar10 dir0.[15]", ["fedavg", "fedcat"])
    (page,) = paper_pages(read(tmp_path))
    assert page.records.dropna(subset="measured").table.value_counts().to_dict() == {"fedcat_1": 4, "fedcat_3": 4}
    titles = [sheet.title for sheet in page.sheets if sheet.title.endswith("Test accuracy")]
    assert titles == ["FedCat, table 1: Test accuracy"]
    assert all(picture.title.startswith("FedCat, table 1: ") for picture in page.pictures)
    (note,) = [note for note in page.notes if "drawn with an earlier table" in note]
    assert note.startswith("FedCat, table 3: cifar10 dir0.1, cifar10 dir0.5: ")
    assert sum(note.startswith("FedCat, table 1 and table 3: ") for note in page.notes) == 1  # seeds that are lacking


def test_a_later_table_draws_a_row_with_one_more_curve(tmp_path):
    left(tmp_path, "fedcat_3", "cifar10 dir0.1", ["fedavg", "fedcat", "fedcat_dc"])
    (page,) = paper_pages(read(tmp_path))
    accuracy = [picture.title for picture in page.pictures if "accuracy" in picture.name]
    assert [title.partition(":")[0] for title in accuracy] == ["FedCat, table 1", "FedCat, table 3"]
    assert [len(rows) for rows in labels(page, "Test accuracy")] == [2, 3]
    assert not any("drawn with an earlier table" in note for note in page.notes)
