"""`python -m fedexp figures`: which figures of Zhao et al. (2018) it writes, and where."""

import pytest
from composing import asked
from recorded import leave_run

from fedexp.cli import carry_out

LAYER = "reference_divergence/encoder.0.weight"


def leave(root, *words, columns=None):
    (sweep,) = asked(*words, f"output_root={root}")
    return [leave_run(job, [0.5, 0.6], columns=columns) for job in sweep.jobs]


def names(folder):
    return sorted(file.stem for file in folder.glob("*.png"))


def test_the_figures_for_which_there_are_runs_are_drawn_and_the_others_named(tmp_path, capsys):
    leave(tmp_path, "partition=iid,shards1", "reference=centralized", "rounds=2", columns={LAYER: 0.1})
    assert carry_out("figures", [str(tmp_path)]) == 0
    folder = tmp_path / "reports" / "zhao2018"
    assert names(folder) == ["accuracy_over_rounds", "divergence_by_layer"]
    assert {file.suffix for file in folder.iterdir()} == {".png", ".pdf"}
    assert "boxes_at_emd: no runs for it" in capsys.readouterr().out


def test_one_run_is_enough_and_its_figures_stand_beside_it(tmp_path):
    run, _ = leave(tmp_path, "partition=iid,shards1", "rounds=2")
    assert carry_out("figures", [str(run)]) == 0
    assert names(tmp_path / "reports" / "zhao2018") == ["accuracy_over_rounds"]


def test_divergence_after_another_synchronisation(tmp_path):
    leave(tmp_path, "partition=emd", "partition.target=0.36,1.44", "reference=centralized", "rounds=2",
          columns={LAYER: 0.1})  # fmt: skip
    to = tmp_path / "figures"
    assert carry_out("figures", [str(tmp_path), "synchronisation=2", "--to", str(to)]) == 0
    assert names(to) == ["accuracy_against_emd", "divergence_against_emd_2"]
    assert carry_out("figures", [str(tmp_path), "synchronisation=3", "--to", str(tmp_path / "none")]) == 0
    assert names(tmp_path / "none") == ["accuracy_against_emd"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required"),
        (["."], ".: no finished runs there"),
        (["nowhere"], "nowhere: is neither a folder nor synchronisation=ROUND"),
        ([".", "round=2"], "round=2: is neither a folder nor synchronisation=ROUND"),
        ([".", "synchronisation=0"], "synchronisation=0: must be the number of a round, from 1"),
        ([".", "synchronisation=x"], "synchronisation=x: must be the number of a round, from 1"),
        (["synchronisation=2"], "synchronisation=2: name a folder that holds runs"),
    ],
    ids=" ".join,
)
def test_what_cannot_work_is_said(monkeypatch, tmp_path, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    assert carry_out("figures", words) == 2
    errors = capsys.readouterr().err
    assert said in errors and errors.count("\n") == 1


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, capsys):
    leave(tmp_path, "partition=iid", "rounds=2")
    (tmp_path / "file").write_text("")
    assert carry_out("figures", [str(tmp_path), "--to", str(tmp_path / "file" / "figures")]) == 2
    assert f"to={tmp_path}/file/figures: cannot be written to" in capsys.readouterr().err
