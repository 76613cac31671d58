"""What a sweep would do, listed without doing it."""

import io
import json

import pytest
from composing import asked
from program import SMALL, run
from recorded import leave_run
from rich.console import Console

from fedexp.sweep.plan import planned, show
from fedexp.sweep.progress import Composing

UNKNOWN = "refused: algorithm=nothing: no such option; did you mean data_sharing?"


@pytest.fixture
def sweep(tmp_path):
    (found,) = asked("algorithm=fedavg,fedcat,nothing", "seed=0,1", "rounds=4", f"output_root={tmp_path}")
    leave_run(found.jobs[0], [0.5])
    stopped = leave_run(found.jobs[1], [0.4], status="interrupted") / "result.json"
    stopped.write_text(json.dumps({**json.loads(stopped.read_text()), "rounds": 2, "seconds": 14}))
    return found


def test_each_run_and_how_far_it_is(sweep):
    found = {run.cells[0]: (run.done, run.state) for run in planned(sweep)}
    assert found == {
        "algorithm=fedavg seed=0": (True, "finished"),
        "algorithm=fedavg seed=1": (False, "interrupted after round 2"),
        "algorithm=fedcat seed=0": (False, "to do"),
        "algorithm=fedcat seed=1": (False, "to do"),
        "algorithm=nothing seed=0": (False, UNKNOWN),
        "algorithm=nothing seed=1": (False, UNKNOWN),
    }


def test_a_run_that_cannot_be_composed_is_listed_with_its_wrong_key(tmp_path):
    (found,) = asked("algorithm=fedprox", "+algorithm.muu=1,2", f"output_root={tmp_path}")
    said = [f"refused: algorithm.muu={value}: no such key; did you mean mu? known: mu" for value in (1, 2)]
    assert [run.state for run in planned(found)] == said


def test_a_run_whose_values_cannot_work_is_refused_and_shares_its_run_with_none(tmp_path):
    """Runs that differ in rounds alone are one run, but one of too many rounds must not stand for the others."""
    (found,) = asked("clients_per_round=2,30", f"rounds=3,{10**19}", "clients=20", f"output_root={tmp_path}")
    few, many, *others = planned(found)
    assert (few.state, few.job.plain["rounds"]) == ("to do", 3)
    assert many.state.startswith(f"refused: rounds={10**19}: must be a number of at most 63 bits")
    assert others[0].state == "refused: clients_per_round=30: must be at most clients=20"
    assert len(others) == 2


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("evaluate=???", "evaluate=null: must be given"),
        ("measures=???", "measures=null: must be given"),
        ("output_root=???", "output_root=null: must be given"),
        ("model.pretrained=${nosuch}", "model.pretrained=${nosuch}: Interpolation key 'nosuch' not found"),
        ("~selection._target_", "selection._target_=null: must name a class or function"),
        ("dataset.transform._target_=builtins.dict", "dataset.transform._target_=dict: does not tell what arguments"),
    ],
)
def test_a_value_that_makes_no_config_is_listed_with_its_key(word, said):
    (found,) = asked("seed=0,1", word)
    assert all(run.state.startswith(f"refused: {said}") for run in planned(found))


def test_runs_for_a_gpu_are_not_refused_where_they_are_composed(tmp_path):
    """A launcher may carry them out on a machine that has one."""
    (found,) = asked("hardware=gpu", "seed=0,1", f"output_root={tmp_path}")
    assert [run.state for run in planned(found)] == ["to do", "to do"]


def test_cells_that_share_a_run_are_one_line(tmp_path):
    (sweep,) = asked("+table=fedcat_3", "+scale=quick", f"output_root={tmp_path}")
    found = planned(sweep)
    assert len(sweep.jobs) == 24 and len(found) == 12 and all(len(run.cells) == 2 for run in found)


def test_the_runs_are_counted_by_what_is_left_to_do(sweep):
    console = Console(file=io.StringIO(), width=100)
    show(sweep, planned(sweep), console)
    said = console.file.getvalue()
    assert "runs: 6 (asked for: 6), done: 1, to do: 3, refused: 2" in said


def test_what_is_left_takes_as_long_as_the_rounds_of_its_kind(sweep):
    """Six rounds of FedAvg took 4 and 14 seconds; the rounds of FedCat are of another kind."""
    found = {run.cells[0]: run.left for run in planned(sweep)}
    assert found["algorithm=fedavg seed=1"] == pytest.approx(2 * (4 + 14) / 6)
    assert {name for name, left in found.items() if left is None} == found.keys() - {"algorithm=fedavg seed=1"}
    console = Console(file=io.StringIO(), width=100)
    show(sweep, planned(sweep), console)
    said = " ".join(console.file.getvalue().split())
    assert "algorithm=fedavg seed=0 4 4.0 s finished" in said
    assert "algorithm=fedavg seed=1 4 about 6.0 s interrupted after round 2" in said
    assert "about 6.0 s for 1 of them" in said and "the time of the others" in said


def test_a_run_that_went_further_took_as_long_as_was_asked_for(tmp_path):
    (longer,) = asked("seed=0,1", "rounds=6", f"output_root={tmp_path}")
    leave_run(longer.jobs[0], [0.1] * 6)
    (shorter,) = asked("seed=0,1", "rounds=2", f"output_root={tmp_path}")
    first, second = planned(shorter)
    assert (first.done, first.rounds, first.seconds, second.left) == (True, 2, 2, 2)


def test_only_what_makes_no_difference_to_speed_is_of_the_same_kind(tmp_path):
    (found,) = asked("seed=0,1", "partition=iid,dir0.1", "rounds=4,5", f"output_root={tmp_path}")
    assert len({job.kind for job in found.jobs}) == 1
    (found,) = asked("model=resnet9,vgg9", "local.epochs=1,2", "hardware.workers=1,2", f"output_root={tmp_path}")
    assert len({job.kind for job in found.jobs}) == 8


@pytest.mark.parametrize("words", [["--dry-run", "-m"], ["--cfg=job", "-m"]])
def test_a_dry_run_lists_and_begins_nothing(monkeypatch, capsys, tmp_path, words):
    assert run(monkeypatch, tmp_path, *words, "algorithm=fedavg,fedcat", "seed=0,1") == 0
    said = capsys.readouterr().out
    assert "algorithm=fedcat seed=1" in said and "runs: 4 (asked for: 4), done: 0, to do: 4" in said
    assert list(tmp_path.iterdir()) == []
    assert run(monkeypatch, tmp_path, *words, "algorithm=fedavg", "round=1,2") == 2
    assert "round=1: no such key" in capsys.readouterr().err


def test_a_dry_run_ends_with_the_exit_code_that_refused_runs_give_the_sweep(monkeypatch, capsys, tmp_path):
    some = ["-m", "clients=20", "clients_per_round=2,30", "rounds=1", "algorithm=local_only", "tracking=none"]
    every = ["-m", "clients=20", "clients_per_round=30,40"]
    for words, code in ((some, 1), (every, 2)):
        assert run(monkeypatch, tmp_path, "--dry-run", *words) == code
        dry = capsys.readouterr()
        assert "clients_per_round=30: must be at most clients=20" in dry.out
        assert run(monkeypatch, tmp_path, *words) == code
    assert "2 of the sweep's runs" not in dry.err and "clients_per_round=30: must be" in dry.err
    for words in (["--dry-run"], ["-m"]):
        assert run(monkeypatch, tmp_path, *words, "+table=fedconcat_6") == 2
        assert "table=fedconcat_6: has a program of its own: python -m fedexp study" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("~algorithm", "~algorithm=: cannot be left out; choose an option: algorithm=NAME"),
        ("fedavg", "fedavg: must be KEY=VALUE"),
        ("--nosuch", "unrecognized arguments: --nosuch"),
        ("--config-dir=/no/where", "--config-dir=/no/where: is not a folder"),
        ("--config-name=mine", "--config-name=mine: does not work with a dry run; leave it out"),
    ],
)
def test_a_dry_run_leaves_out_no_word(monkeypatch, capsys, tmp_path, word, said):
    assert run(monkeypatch, tmp_path, "--dry-run", "-m", "seed=0,1", word) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("more", [["-m", "seed=0"], []], ids=["of a sweep", "of a run"])
def test_a_dry_run_finds_options_in_a_further_folder_as_the_run_does(monkeypatch, capsys, tmp_path, more):
    folder = tmp_path / "own configs"
    (folder / "algorithm").mkdir(parents=True)
    (folder / "algorithm" / "mine.yaml").write_text(
        "name: mine\n_target_: fedexp.algorithms.fedprox.FedProx\nmu: 0.5\n"
    )
    words = [*SMALL, "rounds=1", "algorithm=mine", *more, f"--config-dir={folder}"]
    monkeypatch.chdir(tmp_path)
    for dry, said in ((["--dry-run"], "to do: 1"), ([], "mine"), (["--dry-run"], "done: 1")):
        assert run(monkeypatch, tmp_path / "out", *dry, *words) == 0
        assert said in capsys.readouterr().out


@pytest.mark.parametrize("key", ["nosuch", "rounds"])
def test_a_dry_run_deletes_a_key_as_a_run_does(monkeypatch, capsys, tmp_path, key):
    assert run(monkeypatch, tmp_path, "--dry-run", "-m", "seed=0,1", f"~{key}") == 2
    assert "done: 0, to do: 0, refused: 2" in capsys.readouterr().out


def test_a_dry_run_of_a_table_sets_a_groups_key_in_all_cells_as_the_sweep_does(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, tmp_path, "--dry-run", "+table=fedcat_1", "table.seeds=[0]", "algorithm.mu=3") == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "refused: 50" in said and "algorithm.mu=3: no such key" in said


def test_a_large_sweep_says_how_many_of_its_runs_are_composed(capsys):
    few, many, quick = Composing(seconds=0), Composing(seconds=0), Composing(seconds=1000)
    few(99)
    for _ in range(3):
        many(5000)
    for _ in range(3):
        quick(5000)  # the first is said at once
    assert capsys.readouterr().out == "".join(f"fedexp: {count} of 5,000 runs composed\n" for count in (0, 1, 2, 0))
