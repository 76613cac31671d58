"""A page a paper: the tables of which runs of its protocol measured some cell."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from composing import asked
from recorded import leave_run

from fedexp.cli import carry_out
from fedexp.report.any_runs import by_data_set
from fedexp.report.folders import read
from fedexp.report.paper_pages import paper_pages

PUBLISHED = Path(__file__).parents[2] / "outputs" / "published"
ROWS = "^(mnist|cifar10) dir0.1"


def test_a_paper_that_was_followed_has_a_page_beside_one_for_each_data_set(tmp_path, capsys):
    """Three cells of FedCat's table 3, one of them for fewer rounds than the protocol has; and a run of no paper."""
    (sweep,) = asked("+table=fedcat_3", f'table.select="{ROWS}"', f"output_root={tmp_path}")
    names = ("fedavg", "fedcat_dc", "fedcat")
    whole, far, short = (next(job for job in sweep.jobs if job.cell.column == name) for name in names)
    leave_run(whole, [0.2, 0.5])  # published: 51.01
    leave_run(far, [0.2, 0.48])  # published: 55.06
    leave_run(short, [0.2, 0.3], rounds=20)
    (other,) = asked("seed=3", f"output_root={tmp_path}")
    leave_run(other.jobs[0], [0.4])
    (tmp_path / "remarks.yaml").write_text("fedcat_3: >-\n  The draw\n  explains it.\n\n  One seed.\n")
    assert carry_out("report", [str(tmp_path)]) == 0
    assert "fedcat/fedcat.{md," in capsys.readouterr().out
    page = (tmp_path / "reports" / "fedcat" / "fedcat.md").read_text()
    assert "FedCat: measured beside published" in page.splitlines()[0] and "FedCat, table 3" in page
    assert "![" in page and ".png)" in page
    (said,) = [line for line in page.splitlines() if "after all rounds of the protocol: 2;" in line][:1]
    assert re.search(r"within 1\.5 points .*: 1\. Further off: cifar10 dir0\.1 fedcat\\_dc \(-7\.06\)\.", said)
    assert said.startswith("FedCat, table 3: ")
    assert f"{said}\n\nThe draw explains it.\n\nOne seed.\n" in page
    records = pd.read_csv(tmp_path / "reports" / "fedcat" / "fedcat.csv")
    found = records[records["table"] == "fedcat_3"].dropna(subset="measured")
    assert found["column"].tolist() == ["fedavg", "fedcat_dc", "fedcat"]
    assert found["rounds"].tolist() == [1000, 1000, 20]
    assert (tmp_path / "reports" / "runs_digits" / "runs_digits.md").exists()


def test_a_run_is_no_cell_of_a_table_about_another_model_or_other_numbers_of_clients(tmp_path):
    """Table 9 is about a wide model, 11 about half of the clients; table 5 has the run of table 1."""
    select = 'table.select="fmnist classes2 fedavg$"'
    (sweep,) = asked("+table=fedconcat_1", select, "table.seeds=[0]", f"output_root={tmp_path}")
    leave_run(sweep.jobs[0], [0.7, 0.8])
    (page,) = paper_pages(read(tmp_path))
    assert page.records.dropna(subset="measured").table.tolist() == ["fedconcat_1", "fedconcat_5"]


def test_a_study_is_beside_the_published_numbers_and_is_no_run(tmp_path, capsys):
    """Nor is a run of another paper's protocol a measured cell of this one."""
    study = tmp_path / "fmnist-classes2-simple_cnn-fedavg-seed1-466a6d7c7e"
    shutil.copytree(PUBLISHED / study.name, study)
    (sweep,) = asked("+table=fedcat_3", 'table.select="cifar10 dir0.1 fedavg"', f"output_root={tmp_path}")
    leave_run(sweep.jobs[0], [0.2, 0.5])
    assert carry_out("report", [str(tmp_path)]) == 0
    records = pd.read_csv(tmp_path / "reports" / "fedconcat" / "fedconcat.csv")
    assert records["table"].value_counts().to_dict() == {"fedconcat_6": 8, "fedconcat_7": 8}
    known = pd.read_csv(study / "information.csv").set_index(["table", "data", "algorithm"])
    losses = known.loc[6, "client1", "exchanged_encoder"]
    found = records[(records["table"] == "fedconcat_6") & (records["row"] == "client1 exchanged_encoder")]
    assert found["measured"].tolist() == pytest.approx(losses[["classification_loss", "reconstruction_loss"]].tolist())
    assert losses["commit"] in (tmp_path / "reports" / "fedconcat" / "fedconcat.md").read_text()
    shutil.rmtree(tmp_path / "reports")
    assert carry_out("report", [str(study)]) == 0
    assert "runs" not in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe"], ids=["empty", "other columns", "no text"])
def test_a_damaged_study_is_named_and_left_out(tmp_path, caplog, content):
    study = tmp_path / "fmnist-classes2-simple_cnn-fedavg-seed1-466a6d7c7e"
    shutil.copytree(PUBLISHED / study.name, study)
    (study / "information.csv").write_bytes(content)
    runs = read(tmp_path)
    assert [*by_data_set(runs), *paper_pages(runs)] == []
    (line,) = caplog.messages
    assert line.startswith(f"{study / 'information.csv'} is left out: ") and "classification_loss" in line


@pytest.mark.parametrize("text", ["fedcat_4: No such table.", "fedcat_3: 3", "- a list", "{"])
def test_remarks_are_texts_of_tables(tmp_path, capsys, text):
    (sweep,) = asked("seed=3", f"output_root={tmp_path}")
    leave_run(sweep.jobs[0], [0.4])
    (tmp_path / "remarks.yaml").write_text(text)
    assert carry_out("report", [str(tmp_path)]) == 2
    assert str(tmp_path / "remarks.yaml") in capsys.readouterr().err


def test_runs_of_no_paper_have_no_page(tmp_path):
    (sweep,) = asked("seed=3", f"output_root={tmp_path}")
    leave_run(sweep.jobs[0], [0.4])
    assert list(paper_pages(read(tmp_path))) == []
