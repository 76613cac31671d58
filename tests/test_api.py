"""fedexp from Python: what a run, a sweep and a report give, and what they refuse."""

import json
import os
import re
import shutil
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from program import FEW, SMALL, fork, wait_for_rounds

import fedexp
from fedexp.cli import again
from fedexp.data import Dataset
from fedexp.errors import ConfigError

WORDS = " ".join([*SMALL, "rounds=3", "hardware.workers=1"])
MORE = "+dataset.transform.mean=[0.3] +dataset.transform.std=[0.4]"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One small run, trained once for all tests here."""
    root = tmp_path_factory.mktemp("api")
    words = [WORDS, MORE]
    return fedexp.run(*words, algorithm="fedprox", local__lr=0.02, evaluate__clients="all", output_root=str(root))


def test_what_a_run_gives(done):
    assert done.config.algorithm.name == "fedprox" and done.config.local.lr == 0.02 and done.config.rounds == 3
    assert list(done.metrics.index) == [1, 2, 3]
    assert done.accuracy == done.result["final_accuracy"] == done.metrics["test_accuracy"].iloc[-1]
    assert done.clients.shape == (20, 13) and done.clients["accuracy"].between(0, 1).all()
    assert done.clients.iloc[:, :10].to_numpy().sum() == 1437
    assert done.confusion.to_numpy().sum() == 360
    assert f"3 rounds, accuracy {done.accuracy:.2%}" in repr(done)


def test_a_run_is_found_again(done):
    root = str(done.folder.parent)
    before = (done.folder / "result.json").stat().st_mtime_ns
    words = [WORDS, "algorithm=fedprox evaluate.clients=all", MORE]
    again = fedexp.run(*words, **{"local.lr": 0.02}, output_root=root)
    assert again.folder == done.folder and (done.folder / "result.json").stat().st_mtime_ns == before
    loaded = fedexp.load(str(done.folder))
    pd.testing.assert_frame_equal(loaded.metrics, done.metrics)


def test_fewer_rounds_than_were_carried_out_are_these(done):
    words = [WORDS, "algorithm=fedprox evaluate.clients=all", MORE]
    two = fedexp.run(*words, **{"local.lr": 0.02}, rounds=2, output_root=str(done.folder.parent))
    assert two.folder == done.folder and list(two.metrics.index) == [1, 2]
    assert two.accuracy == done.metrics["test_accuracy"][2] == fedexp.report(two).records["final_accuracy"][0]
    with pytest.raises(ConfigError, match=r"rounds=2: .* has only the model of round 3"):
        _ = two.model
    for order in ((done, two), (two, done), (two, fedexp.load(done.folder))):
        assert sorted(fedexp.report(*order).records["rounds"]) == [2, 3]


def test_a_run_that_was_moved_can_be_loaded(done, tmp_path):
    moved = shutil.copytree(done.folder, tmp_path / "elsewhere")
    assert fedexp.load(moved).model(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).shape == (1, 10)


@pytest.mark.parametrize("words", [{"device": "cuda:7"}, {"precision": "tf32", "device": "cpu"}])
def test_a_run_of_a_machine_that_has_more_can_be_read_but_not_resumed(done, tmp_path, words):
    """Made on a server's GPU, it is looked at on a laptop."""
    shutil.copytree(done.folder, tmp_path / done.folder.name)
    run = fedexp.load(tmp_path / done.folder.name)
    config = OmegaConf.load(run.folder / "config.yaml")
    config.hardware.update(words)
    OmegaConf.save(config, run.folder / "config.yaml")
    assert run.config.hardware.items() >= words.items()
    pictures = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    torch.testing.assert_close(run.model(pictures), done.model(pictures))
    key = next(iter(words))
    with pytest.raises(ConfigError, match=f"hardware.{key}={words[key]}: "):
        again.main([str(run.folder)])


def test_a_sweep_and_its_report(tmp_path):
    runs = fedexp.sweep(f"{WORDS} rounds=1 algorithm=fedavg,fedcat seed=0,1", output_root=str(tmp_path))
    assert [(run.config.algorithm.name, run.config.seed) for run in runs] == [
        ("fedavg", 0), ("fedavg", 1), ("fedcat", 0), ("fedcat", 1),
    ]  # fmt: skip
    page = fedexp.report(*runs, baseline="fedcat", targets=[0.01], to=tmp_path / "to")
    assert sorted(page.records["final_accuracy"]) == sorted(run.accuracy for run in runs)
    assert "Final accuracy minus that of fedcat" in [sheet.title for sheet in page.sheets]
    np.testing.assert_array_equal(page.records["rounds_to_0.01"], 1)
    assert re.search(r"^fedavg +\S+ ± \S+ +\S+ ± \S+ +1 ", repr(page), re.MULTILINE)
    assert "<table" in page._repr_html_() and (tmp_path / "to/runs.html").exists()
    assert len(fedexp.report(tmp_path).records) == 4
    same = fedexp.report(runs, baseline="fedcat", targets=0.01)
    assert repr(same) == repr(page) and same.records.equals(page.records)
    with pytest.raises(ConfigError, match=r"targets=many: must be a fraction, or a list of them: \[0\.7, 0\.8\]"):
        fedexp.report(runs, targets="many")
    with pytest.raises(ConfigError, match="baseline=3: is not among what is compared; known: "):
        fedexp.report(runs, baseline=3)
    with pytest.raises(ConfigError, match="to=3: must be the path of a folder"):
        fedexp.report(runs, to=3)


def test_composing_trains_nothing(tmp_path):
    config = fedexp.compose("paper=fedcat dataset=mnist", rounds=7, targets=[0.5], output_root=str(tmp_path / "none"))
    assert (config.rounds, config.targets, config.clients) == (7, [0.5], 100)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda root: fedexp.run("clints=5"), "clints=5: no such key; did you mean clients?"),
        (lambda root: fedexp.compose(algorithm="fedkat"), "algorithm=fedkat: no such option; did you mean fedcat?"),
        (lambda root: fedexp.compose(privacy=None), "privacy=null: names no option; known: adaptive_clipping, "),
        (lambda root: fedexp.compose("x"), "x: must be KEY=VALUE"),
        (lambda root: fedexp.compose("algorithm=3"), "algorithm=3: names no option; known: apfl, "),
        (lambda root: fedexp.compose(output_root="a\nb"), "contains '\\n'; a setting cannot contain control"),
        (lambda root: fedexp.compose(targets=np.array([0.1, 0.2])), "targets=[0.1 0.2]: is of the type ndarray; "),
        (lambda root: fedexp.compose(seed=torch.tensor(3)), "seed=tensor(3): is of the type Tensor; give a number, a"),
        (lambda root: fedexp.compose(rounds=0), "rounds=0: must be at least 1"),
        (lambda root: fedexp.compose("seed=0,1"), "seed=0,1: asks for several runs"),
        (lambda root: fedexp.sweep("algorithm=fedprox algorithm.muu=1,2"), "algorithm.muu=1: no such key"),
        (lambda root: fedexp.sweep("rounds=3,0", output_root=str(root)), "rounds=0: must be at least 1"),
        (lambda root: fedexp.sweep(seed=[0, 1], output_root=str(root)), "given in a string: fedexp.sweep('seed=A,B')"),
        (lambda root: fedexp.sweep("+table=fedconcat_6", output_root=str(root)), "table=fedconcat_6: has a program of"),
        (lambda root: fedexp.load(root), "holds no run: there is no config.yaml"),
        (lambda root: fedexp.report(root), "no runs there"),
        (lambda root: fedexp.report([]), "no runs there"),
        (lambda root: fedexp.report(root, 3), "places=3: must be the path of a folder"),
        (lambda root: fedexp.load(None), "folder=null: must be the path of a folder"),
        (lambda root: fedexp.compose(None), "None: must be a string of words, such as 'seed=1 rounds=20'; a key can"),
        (lambda root: fedexp.run(3), "3: must be a string of words"),
        (lambda root: fedexp.sweep(["seed=1"]), "put a star before a list of words: *words; two before a dict of keys"),
        (lambda root: fedexp.run({"seed": 1}), "{'seed': 1}: must be a string of words"),
        (lambda root: fedexp.run("seed=1 'x"), "seed=1 'x: must be words as a shell reads them (No closing quotation)"),
    ],
)
def test_what_cannot_work_is_a_config_error_before_anything_is_trained(tmp_path, call, said):
    with pytest.raises(ConfigError) as caught:
        call(tmp_path)
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_is_composed_within_a_program_of_hydra_s_own(tmp_path):
    (tmp_path / "mine.yaml").write_text("own: 3\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        with pytest.raises(ConfigError, match="rounds=0: must be at least 1"):
            fedexp.sweep("rounds=3,0")
        assert compose("mine").own == 3


def test_a_result_that_is_not_there_is_said(done, tmp_path):
    moved = shutil.copytree(done.folder, tmp_path / "killed")
    (moved / "result.json").unlink()
    with pytest.raises(ConfigError, match=r"has no result\.json"):
        _ = fedexp.load(moved).accuracy
    assert json.loads((done.folder / "result.json").read_text())["rounds"] == 3


FILES = {
    "result": ["result.json"], "metrics": ["metrics.csv"], "clients": ["partition.csv", "clients.csv"],
    "confusion": ["confusion.csv", "result.json"], "model": ["model.pt", "result.json"],
}  # fmt: skip
SPOILT = [None, b"", b"\x00\xff garbage,,\n1,2\n", b"a,b\n1,2\n", b"[]", b"PK\x03\x04"]  # None: the file is missing


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, names in FILES.items() for name in names])
def test_a_file_that_is_missing_or_damaged_is_named(done, tmp_path, part, name):
    moved = shutil.copytree(done.folder, tmp_path / "damaged")
    for content in SPOILT:
        (moved / name).unlink(missing_ok=True)
        if content is not None:
            (moved / name).write_bytes(content)
        elif name == "clients.csv":
            continue  # a run that has not evaluated its clients has none
        with pytest.raises(ConfigError) as caught:
            getattr(fedexp.load(moved), part)
        assert str(caught.value).startswith(f"folder={moved}: has no {name} that can be read (")
        assert len(str(caught.value)) < 400


def test_metrics_without_rows_or_with_other_rows_are_said(done, tmp_path):
    moved = shutil.copytree(done.folder, tmp_path / "damaged")
    header, first, *_ = (done.folder / "metrics.csv").read_text().splitlines()
    for rows in ([], [first, f"x{first}"], [first, first]):
        (moved / "metrics.csv").write_text("\n".join([header, *rows]))
        with pytest.raises(ConfigError, match=r"has no metrics\.csv that can be read"):
            _ = fedexp.load(moved).metrics


def test_of_a_run_that_was_carried_on_the_model_is_that_of_its_result(tmp_path):
    """A model is written at a run's end: after an interruption it is an earlier one, which no result tells of; after a
    kill result.json, too, is that of the earlier end."""
    words = [*FEW, "local.lr=0.02", "checkpoint_seconds=0"]
    two = fedexp.run(WORDS, *words, rounds=2, output_root=tmp_path)
    logits = two.model(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
    job = fork(tmp_path, *words, "rounds=100000")
    wait_for_rounds(tmp_path, 5, job)
    job.kill()
    job.join()
    killed = fedexp.run(WORDS, *words, rounds=2, output_root=tmp_path)
    assert killed.result["rounds"] == fedexp.load(killed.folder).result["rounds"] == 2
    assert torch.equal(killed.model(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)), logits)
    pd.testing.assert_frame_equal(killed.confusion, two.confusion)
    page = fedexp.report(tmp_path)
    (row,) = page.records.to_dict("records")
    assert (row["rounds"], row["final_accuracy"], page.notes) == (2, two.accuracy, fedexp.report(two).notes)
    job = fork(tmp_path, *words, "rounds=100000")
    wait_for_rounds(tmp_path, 10, job)
    os.kill(job.pid, signal.SIGTERM)
    job.join()
    stopped = fedexp.load(two.folder)
    assert stopped.result["status"] == "interrupted" and stopped.result["rounds"] > 2
    for part in ("model", "confusion"):
        with pytest.raises(
            ConfigError, match=r"has no model of round \d+, after which it was interrupted; the run's own"
        ):
            getattr(stopped, part)


def test_a_run_without_a_result_is_reported_as_its_folder_is(done, tmp_path):
    killed = shutil.copytree(done.folder, tmp_path / done.folder.name)
    (killed / "result.json").unlink()
    assert fedexp.report(fedexp.load(killed)).notes == fedexp.report(tmp_path).notes != fedexp.report(done).notes


def test_paths_and_configs_and_numbers_of_numpy_are_values(tmp_path):
    for place in (tmp_path / "a b=c,d", Path("~/data")):
        assert fedexp.compose(output_root=place).output_root == str(place)
    local, targets = OmegaConf.create({"lr": 0.5, "epochs": 2}), OmegaConf.create([0.5])
    config = fedexp.compose(local=local, targets=targets, seed=np.int64(3), hardware__device=torch.device("cpu"))
    assert (config.local.lr, config.local.epochs, config.targets, config.seed) == (0.5, 2, [0.5], 3)


def test_a_run_is_found_from_another_working_directory(done, tmp_path, monkeypatch):
    monkeypatch.chdir(done.folder.parent.parent)
    words, root = [WORDS, "algorithm=fedprox local.lr=0.02 evaluate.clients=all", MORE], done.folder.parent.name
    found, loaded = fedexp.run(*words, output_root=root), fedexp.load(f"{root}/{done.folder.name}")
    monkeypatch.chdir(tmp_path)
    assert found == done and len({found, done}) == 1
    pd.testing.assert_frame_equal(found.metrics, loaded.metrics)


def test_a_run_that_has_no_result_yet_can_be_shown(done, tmp_path):
    going = shutil.copytree(done.folder, tmp_path / "going")
    (going / "result.json").unlink()
    assert repr(fedexp.load(going)).startswith(f"Run({going}: has no result.json that can be read (")


def test_a_terminal_that_is_gone_does_not_end_a_run(tmp_path, monkeypatch):
    ours, theirs = os.pipe()
    os.close(ours)
    monkeypatch.setattr(sys, "stdout", os.fdopen(theirs, "w", buffering=1))
    assert fedexp.run(WORDS, *FEW, rounds=1, output_root=tmp_path).result["status"] == "finished"
    sys.stdout.close()


def test_the_model_is_that_of_the_run_whatever_the_program_has_set(tmp_path):
    made = fedexp.run(WORDS, *FEW, rounds=1, output_root=tmp_path).folder
    pictures = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    logits = fedexp.load(made).model(pictures)
    torch.set_default_device("meta")
    try:
        model = fedexp.load(made).model
    finally:
        torch.set_default_device(None)
    assert torch.equal(model(pictures), logits)


def test_the_package_says_what_it_offers():
    assert {"run", "sweep", "load", "report", "compose"} <= {*dir(fedexp)}
    for name in ("report.published", "sweep.table"):
        import_module(f"fedexp.{name}")  # subpackages of these names are not in the way
    assert callable(fedexp.report) and callable(fedexp.sweep)
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = fedexp.runn


def stored(transform, root):
    x, y = torch.load(Path(root) / "examples.pt", weights_only=True)
    return Dataset("stored", x, y, x, y, 10, transform)


def test_the_model_needs_neither_the_data_nor_the_working_directory_of_its_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_data", SimpleNamespace(stored=stored))
    (tmp_path / "pictures").mkdir()
    torch.save((torch.zeros(40, 1, 8, 8, dtype=torch.uint8), torch.arange(40) % 10), tmp_path / "pictures/examples.pt")
    monkeypatch.chdir(tmp_path)
    words = WORDS.replace("dataset=digits", "dataset=own dataset._target_=own_data.stored +dataset.root=pictures")
    done = fedexp.run(words, partition="iid", rounds=1, output_root="outputs")
    monkeypatch.chdir(tmp_path.parent)
    shutil.rmtree(tmp_path / "pictures")
    assert fedexp.load(done.folder).model(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).shape == (1, 10)


def test_a_model_whose_result_does_not_tell_the_shape_of_examples_is_refused(done, tmp_path):
    early = shutil.copytree(done.folder, tmp_path / "early")
    result = json.loads((early / "result.json").read_text())
    assert result.pop("examples") == {"shape": [1, 8, 8], "tokens": False, "classes": 10}
    (early / "result.json").write_text(json.dumps(result))
    with pytest.raises(ConfigError, match=r"early: is of an earlier version of fedexp, .*; delete it, and run its"):
        _ = fedexp.load(early).model
