"""`python -m fedexp report`: what it writes, what it leaves out, what it refuses."""

import json

import pytest
import yaml
from composing import asked
from omegaconf import OmegaConf
from recorded import leave_run

import fedexp
from fedexp.cli import carry_out
from fedexp.report.folders import read


def report(*words):
    return carry_out("report", [*map(str, words)])


@pytest.fixture
def outputs(tmp_path):
    (sweep,) = asked("algorithm=fedavg,fedcat", "local.lr=0.1,0.2", "seed=0,1", f"output_root={tmp_path}")
    for number, job in enumerate(sweep.jobs):
        leave_run(job, [0.1, 0.5 + 0.02 * number])
    return tmp_path


ODD = {
    b"algorithm: {name: x}": "its config.yaml lacks dataset, partition, model, selection",
    b"- 1": "its config.yaml lacks all keys",
    b"seed: 0\nmeasures: 3\nalgorithm: 1": "lacks dataset, partition, model, algorithm, selection, ",
    b"a: [": "its config.yaml cannot be read",
    b"\xff\xfe": "its config.yaml cannot be read",
}


def test_folders_that_hold_no_run_are_left_out_by_name_and_reason(outputs, caplog, capsys):
    for number, text in enumerate(ODD):
        (outputs / f"odd{number}").mkdir()
        (outputs / f"odd{number}" / "config.yaml").write_bytes(text)
    assert report(outputs) == 0
    assert "8 runs, 4 settings" in capsys.readouterr().out
    for number, (said, why) in enumerate(zip(caplog.messages, ODD.values(), strict=True)):
        assert said.startswith(f"{outputs}/odd{number} is left out: ") and why in said


def test_a_run_of_an_older_version_is_left_out_by_name_and_reason(outputs, caplog, capsys):
    path = next(outputs.glob("*-fedcat-*")) / "config.yaml"
    old = OmegaConf.to_container(OmegaConf.load(path))
    for key in ("selection", "server_optimizer", "compression", "privacy"):
        del old[key]
    old["evaluate_every"] = old.pop("evaluate")["every"]
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(old)))
    assert report(outputs) == 0
    assert "7 runs, 4 settings" in capsys.readouterr().out
    (said,) = caplog.messages
    assert f"{path.parent} is left out: it was written by another version of fedexp" in said
    assert said.endswith("its config.yaml lacks selection, server_optimizer, compression, privacy, evaluate")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, False), ({"seed": 5}, True), ({"local.lr": 0.3}, True), ({"rounds": 70, "hardware.device": "cpu"}, False),
        ({"algorithm._target_": "mine.Mine"}, False), ({"model.pretrained": "weights.pt"}, False),
    ],
)  # fmt: skip
def test_a_config_that_was_edited_after_its_run_is_said(outputs, changes, said, caplog):
    path = next(outputs.glob("*-fedcat-*"))
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps({**result, "versions": {"fedexp": fedexp.__version__}}))
    config = OmegaConf.load(path / "config.yaml")
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    OmegaConf.save(config, path / "config.yaml")
    read(outputs)
    told = f"{path}: its config.yaml was changed after the run; it is read as it is now"
    assert caplog.messages == ([told] if said else [])


def test_a_stranger_s_config_is_read_as_it_stands(outputs, monkeypatch, capsys):
    """No interpolation is resolved, which could tell what is in the environment; no module is imported on its word."""
    monkeypatch.setenv("FEDEXP_SECRET", "swordfish")
    monkeypatch.chdir(outputs)
    monkeypatch.syspath_prepend(str(outputs))
    path = next(outputs.glob("*-fedcat-*")) / "config.yaml"
    (path.parent / "planted.py").write_text("open('planted', 'w').close()\ndef mine(): pass\n")
    config = OmegaConf.to_container(OmegaConf.load(path))
    config["local"]["lr"] = "${oc.env:FEDEXP_SECRET}"
    config["model"]["_target_"] = f"{path.parent.name}.planted.mine"
    path.write_text(yaml.safe_dump(config))
    assert report(outputs) == 0
    files = (outputs / "reports/runs").iterdir()
    written = b"".join(file.read_bytes() for file in files).decode(errors="ignore") + capsys.readouterr().out
    assert "${oc.env:FEDEXP_SECRET}" in written and "swordfish" not in written
    assert not (outputs / "planted").exists()


def test_a_table_of_which_nothing_composes_overwrites_no_report(tmp_path, capsys):
    assert report("table=fedcat_1", "rounds=x", "--to", str(tmp_path / "reports")) == 2
    assert "rounds=x: must be a whole number" in capsys.readouterr().err
    assert not (tmp_path / "reports").exists()


def test_the_command_writes_every_format(outputs, capsys):
    assert report(outputs) == 0
    said = capsys.readouterr().out
    assert "63.00 ± 1.41" in said
    written = {path.suffix for path in (outputs / "reports/runs").iterdir()}
    assert written == {".csv", ".html", ".md", ".tex", ".png", ".pdf"}
    assert report(outputs) == 0  # a report is no run
    assert "runs.{md,csv,tex,html} and 2 pictures, each as png and pdf" in said


def test_a_report_on_single_runs_stands_beside_them(outputs):
    runs = sorted(path for path in outputs.iterdir() if path.is_dir())[:2]
    assert report(*runs) == 0
    assert (outputs / "reports" / "runs" / "runs.md").exists() and not (runs[0] / "reports").exists()


def test_the_command_writes_a_folder_for_each_data_set(outputs, capsys):
    (sweep,) = asked("dataset=mnist", f"output_root={outputs}")
    leave_run(sweep.jobs[0], [0.7])
    for words, to in (
        ([outputs], outputs / "reports"),
        ([outputs, "--to", outputs / "elsewhere"], outputs / "elsewhere"),
    ):
        assert report(*words) == 0
        for name in ("runs_digits", "runs_mnist"):
            assert (to / name / f"{name}.md").exists()
    assert "mnist: 1 run, 1 setting" in capsys.readouterr().out


def test_the_command_reports_a_table(tmp_path, capsys):
    (sweep,) = asked("+table=fedcat_3", f"output_root={tmp_path}")
    leave_run(sweep.jobs[0], [0.51])
    assert report("table=fedcat_3", f"output_root={tmp_path}") == 0
    assert "51.00" in capsys.readouterr().out
    assert "51.01" in (tmp_path / "reports/fedcat_3/fedcat_3.md").read_text()


def test_several_tables_have_a_folder_each(tmp_path):
    """Their pictures have the same names."""
    (sweep,) = asked("+table=fedcat_3", f"output_root={tmp_path}")
    leave_run(sweep.jobs[0], [0.51])
    to = tmp_path / "to"
    assert report("table=fedcat_1,fedcat_3", f"output_root={tmp_path}", "--to", to) == 0
    assert sorted(path.name for path in to.iterdir()) == ["fedcat_1", "fedcat_3"]
    assert report("table=fedcat_3", f"output_root={tmp_path}", "--to", to / "alone") == 0
    assert (to / "alone" / "fedcat_3.md").read_text() == (to / "fedcat_3" / "fedcat_3.md").read_text()


FEW_CELLS = 'table.select="cifar10 dir0.1"'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere/at/all"], "neither a folder"),
        (["x" * 300], "(300 characters): is neither a folder"),
        (
            ["table=fedcat_3", FEW_CELLS, "output_root=" + "x" * 300],
            "(300 characters): cannot be read (File name too long)",
        ),
        (["table=fedcat_9"], "fedcat_9"),
        (["rounds=3"], "fedexp: rounds=3: name a table"),
        (["targets=0.8"], "fedexp: name a table"),
        ([], "fedexp: the following arguments are required: FOLDER or KEY=VALUE; --help lists the options"),
        (["table=3"], "table=3: names no option; known: cadis_1"),
        (["table=fedcat_1", "table.seed=3"], "table.seed=3: no such key; did you mean seeds?"),
        (["table=fedcat_1", "+scale=quick", "scale.seeds=0"], "scale.seeds=0: must be at least 1"),
        (["table=fedcat_1", "table.seeds=[]"], "table.seeds=[]: must name at least one"),
        (["table=fedcat_3", FEW_CELLS, "--to", __file__], f"to={__file__}: cannot be written to"),
        (["table=fedcat_1", "round=3"], "round=3: no such key; did you mean rounds?"),
        (["table=fedcat_3", FEW_CELLS, "partition.noise=nan"], "partition.noise=nan: must be finite"),
        (["table=fedcat_3", FEW_CELLS, "algorithm.muu=3"], "algorithm.muu=3: no such key; known: _target_, "),
    ],
)
def test_what_cannot_be_reported_is_said(words, said, capsys):
    assert report(*words) == 2
    assert said in capsys.readouterr().err


def test_a_study_alone_that_belongs_in_no_table_is_said(tmp_path, capsys):
    (sweep,) = asked("algorithm=fedavg", f"output_root={tmp_path}")
    folder = leave_run(*sweep.jobs, [0.5])
    for name in ("result.json", "metrics.csv"):
        (folder / name).unlink()
    (folder / "information.csv").write_text("table,data,algorithm,classification_loss,reconstruction_loss,commit\n")
    assert report(tmp_path) == 2
    assert f"{tmp_path}: only folders of `fedexp study` there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{outputs}"], "--dashboard={outputs}: is for a table's runs in wandb, not for folders; give table=NAME"),
        (["table=fedcat_3", "{outputs}"], "--dashboard={outputs}: is for a table's runs in wandb, not for folders"),
        (["table=fedcat_3", "--to", "here"], "to=here: --dashboard writes no files"),
    ],
)
def test_a_dashboard_of_files_is_refused(outputs, words, said, capsys):
    assert report(*(word.format(outputs=outputs) for word in words), "--dashboard") == 2
    output = capsys.readouterr()
    assert said.format(outputs=outputs) in output.err
    assert output.out == ""
    assert not (outputs / "reports").exists()
