"""`python -m fedexp again RUN`: a run from the config.yaml that it left."""

import json
import shutil

import pytest
from omegaconf import OmegaConf
from program import FEW, metrics, only_folder, result, run

from fedexp.cli import carry_out

WORDS = [*FEW, "rounds=2", "local.steps=2", "algorithm=fedprox", "algorithm.mu=0.3", "local.lr=1e-3"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run's folder."""
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        assert run(patch, root, *WORDS) == 0
    return only_folder(root)


@pytest.fixture
def left(finished, tmp_path):
    """A copy of it, for a test to go on with."""
    return shutil.copytree(finished, tmp_path / "out" / finished.name)


def again(folder, *words):
    return carry_out("again", [str(folder), *words])


def rounds_of(folder):
    return json.loads((folder / "result.json").read_text())["rounds"]


def test_a_finished_run_is_found(left, capsys):
    before = (left / "result.json").stat().st_mtime_ns
    assert again(left) == 0
    assert "already finished" in capsys.readouterr().out
    assert (left / "result.json").stat().st_mtime_ns == before


def test_more_rounds_extend_it_to_what_they_give_at_once(left, monkeypatch, tmp_path):
    assert again(left, "rounds=4") == 0
    assert [path for path in left.parent.iterdir() if path.is_dir()] == [left]
    assert run(monkeypatch, tmp_path / "at_once", *WORDS, "rounds=4") == 0
    assert metrics(left.parent).equals(metrics(tmp_path / "at_once"))
    assert again(left, "rounds=3") == 0
    assert rounds_of(left) == 4


def test_another_value_is_another_run_beside_it(left, monkeypatch, capsys):
    assert again(left, "seed=1", "local.lr=2e-3", "+measures.divergence=null") == 0
    (other,) = [path for path in left.parent.iterdir() if path.is_dir() and path != left]
    assert OmegaConf.load(other / "config.yaml").local.lr == 0.002
    capsys.readouterr()
    assert run(monkeypatch, left.parent, *WORDS, "seed=1", "local.lr=2e-3", "measures.divergence=null") == 0
    assert "already finished" in capsys.readouterr().out


def test_a_single_target_is_a_list_of_one_as_in_a_run_s_own_words(left):
    assert again(left, "targets=0.8", "seed=1") == 0
    (other,) = [path for path in left.parent.iterdir() if path.is_dir() and path != left]
    assert OmegaConf.load(other / "config.yaml").targets == [0.8]


def test_where_it_runs_and_is_tracked_may_be_chosen_anew(left):
    assert again(left, "rounds=3", "hardware=cpu", "hardware.workers=2", "tracking=tensorboard") == 0
    assert [path for path in left.parent.iterdir() if path.is_dir()] == [left]
    assert rounds_of(left) == 3
    config = OmegaConf.load(left / "config.yaml")
    assert (config.hardware.device, config.hardware.workers, config.tracking.name) == ("cpu", "2", "tensorboard")


def test_a_folder_may_be_elsewhere(left, monkeypatch, tmp_path, capsys):
    """Wherever it has been moved to, and from wherever it is named."""
    moved = shutil.move(left, tmp_path / "elsewhere" / left.name)
    monkeypatch.chdir(moved)
    assert again(".") == 0
    assert "already finished" in capsys.readouterr().out
    assert again(".", "rounds=3") == 0
    assert rounds_of(moved) == 3
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rouns=3"], "rouns=3: no such key; did you mean rounds?"),
        (["epochs=3"], "epochs=3: no such key; did you mean local.epochs?"),
        (["algorithm.muu=1"], "algorithm.muu=1: no such key; did you mean mu?"),
        (["+algorithm.muu=1"], "algorithm.muu=1: no such key; did you mean mu?"),
        (
            ["algorithm=fedcat"],
            "algorithm=fedcat: cannot be changed in a saved run; give its own keys, algorithm.KEY=VALUE",
        ),
        (["paper=fedcat"], "paper=fedcat: chooses a protocol, which cannot be changed in a saved run"),
        (["selection=clusamp"], "selection=clusamp: cannot be changed in a saved run"),
        (["hardware=cqu"], "hardware=cqu: no such option; did you mean cpu?"),
        (["~tracking"], "~tracking=: cannot be left out; choose an option: tracking=NAME"),
        (["seed=1,2"], "seed=1,2: must be a single value"),
        (["rounds=many"], "rounds=many: "),
        (["rounds=0"], "rounds=0: must be at least 1"),
        (["algorithm.mu=-1"], "algorithm.mu=-1: must be at least 0"),
        (["rounds"], "rounds: must be KEY=VALUE"),
        (["tests"], "tests: is a second folder; again carries out one run"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_what_cannot_work_is_said(finished, capsys, words, said):
    assert again(finished, *words) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"fedexp: {said}") and errors.count("\n") == 1


def test_a_key_of_one_s_own_class_is_added(finished, capsys):
    assert again(finished, "algorithm._target_=own_code.Twin", "algorithm.name=mine", "algorithm.pull=1") == 2
    assert "algorithm.pull=1: no such key; " in (said := capsys.readouterr().err)
    assert "; for one of your own: +algorithm.pull=1" in said


def test_a_flag_is_no_folder(left, capsys):
    assert again("-m", str(left)) == 2
    assert capsys.readouterr().err == (
        "fedexp: -m: is not a run's folder; again carries out one run, whose folder is the first word\n"
    )


def test_what_is_no_run_of_this_version_is_said(left, tmp_path, capsys):
    assert carry_out("again", []) == 2
    assert "again: name a run's folder" in capsys.readouterr().err
    assert again(tmp_path / "nowhere") == 2
    assert f"{tmp_path}/nowhere: holds no config.yaml that can be read" in capsys.readouterr().err
    (left / "config.yaml").write_text("a: [")
    assert again(left) == 2
    assert "holds no config.yaml that can be read" in capsys.readouterr().err
    (left / "config.yaml").write_text("seed: 0\nalgorithm: {_target_: x}\n")
    assert again(left) == 2
    assert "was written by another version of fedexp: config.yaml lacks dataset, partition" in capsys.readouterr().err


def test_a_key_of_another_version_is_said(left, capsys):
    config = OmegaConf.load(left / "config.yaml")
    config.evaluate_every = 1
    OmegaConf.save(config, left / "config.yaml")
    assert again(left) == 2
    assert "cannot be used (Key 'evaluate_every' not in 'Settings')" in capsys.readouterr().err
    assert result(left.parent)["rounds"] == 2
