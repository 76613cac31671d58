"""Any runs beside each other, the command itself, and dashboards."""

import shutil
from dataclasses import replace

import pytest
from recorded import asked, leave_run

from fedexp.report.__main__ import main
from fedexp.report.any_runs import compare_runs
from fedexp.report.dashboard import build, plan
from fedexp.report.page import NOTHING
from fedexp.report.runs import read


@pytest.fixture
def outputs(tmp_path):
    (sweep,) = asked("algorithm=fedavg,fedcat", "local.lr=0.1,0.2", "seed=0,1", f"output_root={tmp_path}")
    for number, job in enumerate(sweep.jobs):
        leave_run(job, [0.1, 0.5 + 0.02 * number])
    return tmp_path


def test_what_differs_becomes_the_columns(outputs):
    page = compare_runs(read(outputs))
    sheet = page.sheets[0]
    assert sheet.header[1:3] == ["algorithm", "local.lr"]
    assert "seed" not in sheet.header
    best = [entry.main for entry in sheet.rows[0]]
    assert best[1:3] == ["fedcat", "0.2"]
    assert "63.00 ± 1.41" in best  # seeds 62 % and 64 %
    assert len(sheet.rows) == 4
    assert len(page.records) == 8


def test_a_seed_that_an_algorithm_takes_too_is_a_seed(tmp_path):
    (sweep,) = asked("algorithm=fedavg,data_sharing", "seed=0,1", f"output_root={tmp_path}")
    for number, job in enumerate(sweep.jobs):
        leave_run(job, [0.1 * number])
    page = compare_runs(read(tmp_path))
    assert len(page.sheets[0].rows) == 2
    assert "algorithm.seed" not in page.sheets[0].header
    assert "25.00 ± 7.07" in [entry.main for entry in page.sheets[0].rows[0]]


def test_what_is_incomplete_is_not_averaged(outputs):
    (sweep,) = asked("algorithm=fedcat", "local.lr=0.2", "seed=2,3", f"output_root={outputs}")
    leave_run(sweep.jobs[0], [0.9], status="interrupted")
    (other,) = asked("algorithm=scaffold", f"output_root={outputs}")
    leave_run(other.jobs[0], [0.95], status="interrupted")
    rows = [[entry.main for entry in row] for row in compare_runs(read(outputs)).sheets[0].rows]
    assert rows[0][1:3] == ["fedcat", "0.2"] and "63.00 ± 1.41" in rows[0] and "finished, interrupted" in rows[0]
    assert rows[-1][1] == "scaffold", "what is complete comes first"


def test_an_own_class_under_another_ones_name_has_a_line_of_its_own(tmp_path):
    words = ["seed=0,1", f"output_root={tmp_path}"]
    for own in ([], ["algorithm._target_=fedexp.algorithms.fedrs.FedRS"]):
        (sweep,) = asked("algorithm=fedavg", *own, *words)
        for job in sweep.jobs:
            leave_run(job, [0.5])
    sheet = compare_runs(read(tmp_path)).sheets[0]
    assert sheet.header[1] == "algorithm._target_"
    rows = [[entry.main for entry in row] for row in sheet.rows]
    assert sorted(row[1].split(".")[-1] for row in rows) == ["FedAvg", "FedRS"]
    assert [row[sheet.header.index("seeds")] for row in rows] == ["2", "2"]


def test_a_copy_of_a_run_is_no_other_seed(outputs, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copies")
    shutil.copytree(outputs, copy, dirs_exist_ok=True)
    page = compare_runs(read(outputs, copy))
    assert len(page.records) == 8
    assert {row[-2].main for row in page.sheets[0].rows} == {"2"}


def test_a_model_that_ended_at_chance_is_noted(outputs):
    (sweep,) = asked("algorithm=scaffold", f"output_root={outputs}")
    file = leave_run(sweep.jobs[0], [0.1]) / "result.json"
    file.write_text(file.read_text().replace('"status"', '"at_chance": true, "status"'))
    assert compare_runs(read(outputs)).notes == [f"{file.parent.name}: ended at chance, it has not learned."]


def test_what_is_not_known_is_left_open(outputs):
    (sweep,) = asked("algorithm=scaffold", f"output_root={outputs}")
    (leave_run(sweep.jobs[0], [0.9]) / "result.json").unlink()
    sheet = compare_runs(read(outputs)).sheets[0]
    last = dict(zip(sheet.header, (entry.main for entry in sheet.rows[-1])))
    assert (last["rounds"], last["MB sent"], last["final accuracy, %"]) == (NOTHING,) * 3


def test_a_run_named_twice_is_one(outputs):
    folder = next(path for path in outputs.iterdir() if "fedcat" in path.name)
    assert len(read(outputs, folder, outputs / ".")) == 8


@pytest.mark.parametrize(
    "text", [b"algorithm: {name: x}", b"a: [", b"\xff\xfe", b"- 1", b"seed: 0\nmeasures: 3\nalgorithm: 1"]
)
def test_a_folder_that_holds_no_run_is_said_and_left_out(outputs, text, capsys):
    (outputs / "odd").mkdir()
    (outputs / "odd" / "config.yaml").write_bytes(text)
    assert main([str(outputs)]) == 0
    assert "odd holds no run" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", "null", "{"])
def test_a_damaged_result_is_a_run_that_is_not_complete(outputs, text):
    folder = next(path for path in outputs.iterdir() if "fedcat" in path.name)
    (folder / "result.json").write_text(text)
    assert sorted(run.complete for run in read(outputs)) == [False] + [True] * 7


def test_a_table_of_which_nothing_composes_overwrites_no_report(tmp_path, capsys):
    assert main(["table=fedcat_1", "rounds=x", "--to", str(tmp_path / "reports")]) == 2
    assert "'x'" in capsys.readouterr().err
    assert not (tmp_path / "reports").exists()


def test_the_command_writes_every_format(outputs, capsys):
    assert main([str(outputs)]) == 0
    said = capsys.readouterr().out
    assert "63.00 ± 1.41" in said
    written = sorted(path.suffix for path in (outputs / "reports/runs").iterdir())
    assert written == [".csv", ".html", ".md", ".tex"]
    assert main([str(outputs)]) == 0  # a report is no run


def test_the_command_reports_a_table(tmp_path, capsys):
    (sweep,) = asked("+table=fedcat_3", f"output_root={tmp_path}")
    leave_run(sweep.jobs[0], [0.51])
    assert main(["table=fedcat_3", f"output_root={tmp_path}"]) == 0
    assert "51.00" in capsys.readouterr().out
    assert "51.01" in (tmp_path / "reports/fedcat_3/fedcat_3.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere/at/all"], "neither a folder"),
        (["table=fedcat_9"], "fedcat_9"),
        (["rounds=3"], "name a table"),
        (["table=3"], "table=3: names no option; known: cadis_1"),
        (["table=fedcat_1", "table.seed=3"], "table.seed=3: no such key; did you mean seeds?"),
        (["table=fedcat_1", "+scale=quick", "scale.seeds=0"], "scale.seeds=0: must be at least 1"),
        (["table=fedcat_1", "table.seeds=[]"], "table.seeds=[]: must name at least one"),
        (["table=fedcat_3", "--to", __file__], f"--to={__file__}: cannot be written to"),
        (["table=fedcat_1", "round=3"], "round=3: no such key; did you mean rounds?"),
        (["table=fedcat_3", "algorithm.muu=3"], "algorithm.muu=3: no such key; known: _target_, "),
    ],
)
def test_what_cannot_be_reported_is_said(words, said, capsys):
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_a_dashboard_without_credentials_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["table=fedcat_3", "--dashboard"]) == 0
    said = capsys.readouterr().out
    assert "would make" in said
    assert 'workspace "fedcat_3" in project fedexp, over the runs of group fedcat_3' in said
    assert "Test accuracy over bytes sent: lines of test_accuracy over bytes_total" in said


def test_a_dashboard_is_what_the_plan_says():
    pytest.importorskip("wandb_workspaces")
    (sweep,) = asked("+table=fedcat_3", "+scale=quick")
    wanted = replace(plan(sweep), entity="someone")
    made = build(wanted)
    assert [section.name for section in made.sections] == list(wanted.sections)
    assert [len(section.panels) for section in made.sections] == [len(panels) for panels in wanted.sections.values()]
    text = made._to_model().model_dump_json()
    assert "fedcat_3" in text and "quick" in text and "bytes_total" in text
