"""One run over several processes: real ones, which torchrun starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from program import FEW, SMALL, only_folder, result, run, same_results, wait_for_rounds

from fedexp.config import launch
from fedexp.config.settings import Hardware
from fedexp.engine import ranks
from fedexp.errors import ConfigError

COHORT = [*SMALL, *FEW, "clients_per_round=5", "hardware.workers=2"]  # of one thread each
ONE_AFTER_ANOTHER = """
import sys, torch, fedexp
from fedexp.config import launch
from fedexp.engine import client_rows
for words in sys.argv[1:]:
    fedexp.run(words)
rows = client_rows.new({"w": torch.zeros(2), "seen": torch.tensor(False)}, 6)
rows = client_rows.put(rows, torch.tensor([4, 1]), {"w": torch.ones(2, 2), "seen": torch.tensor([True, True])})
found = client_rows.take(rows, torch.tensor([1, 3]))
assert found["w"].tolist() == [[1, 1], [0, 0]] and found["seen"].tolist() == [True, False]
assert bool(rows["rows"]) == launch.is_first()
"""
NOTED = """
import os, sys
from pathlib import Path
Path(sys.argv.pop(1), os.environ["RANK"]).write_text(str(os.getpid()))
from fedexp.main import main
main()
"""


def torchrun(folder, script, *words, processes=2):
    """Several processes that carry out the script."""
    path = folder / "script.py"
    path.write_text(script)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        path,
        *words,
    ]
    home = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(home)}
    return subprocess.Popen(
        command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_two_processes_give_what_one_gives_and_one_goes_on(tmp_path, monkeypatch):
    """To the bit, whatever clients remember, in a cohort that two cannot share evenly, and in one of a single client,
    whose results have types of different sizes. Two rounds in two processes and two more in one are four in one."""
    kinds = {
        "fedavg": ["rounds=2"],
        "scaffold": ["algorithm=scaffold", "rounds=3"],
        "alone": ["algorithm=fednova", "clients_per_round=1", "rounds=3"],
    }
    lines = [" ".join([*COHORT, *words, f"output_root={tmp_path / name}"]) for name, words in kinds.items()]
    job = torchrun(tmp_path, ONE_AFTER_ANOTHER, *lines)
    said = job.communicate(timeout=120)[0]
    assert job.returncode == 0, said
    assert said.count("round 2/2") == 1, "the first process alone prints"
    for name, more in {**kinds, "fedavg": ["rounds=4"]}.items():
        assert run(monkeypatch, tmp_path / name, *COHORT, *more, *kinds[name][:-1]) == 0
        assert run(monkeypatch, tmp_path / f"{name} whole", *COHORT, *more, *kinds[name][:-1]) == 0
        assert same_results(tmp_path / name, tmp_path / f"{name} whole")
    assert result(tmp_path / "fedavg")["rounds"] == 4


@pytest.mark.slow
def test_three_processes_give_what_one_gives(tmp_path, monkeypatch):
    """To the bit, with what clients and the server remember of each client, personal models and clients' chains."""
    kinds = {
        "fedcat": ["algorithm=fedcat"],
        "personal": ["algorithm=apfl", "evaluate.clients=all"],
        "fesem": ["algorithm=fesem", "algorithm.clusters=2"],
        "clusamp": ["algorithm=scaffold", "selection=clusamp", "clients_per_round=3"],
        "errors": ["algorithm=fedprox", "compression=top_k"],
    }
    for rounds in (3, 6):  # goes on from a checkpoint that the first process alone has read
        lines = [
            " ".join([*COHORT, *words, f"rounds={rounds}", f"output_root={tmp_path / name}"])
            for name, words in kinds.items()
        ]
        job = torchrun(tmp_path, ONE_AFTER_ANOTHER, *lines, processes=3)
        said = job.communicate(timeout=240)[0]
        assert job.returncode == 0, said
    for name, words in kinds.items():
        assert run(monkeypatch, tmp_path / f"{name} whole", *COHORT, *words, "rounds=6") == 0
        assert same_results(tmp_path / name, tmp_path / f"{name} whole"), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "another process of this run has ended"), (signal.SIGTERM, "fedexp: interrupted")],
)
def test_the_end_of_one_process_is_that_of_all_and_one_goes_on(tmp_path, monkeypatch, number, said):
    words = [*COHORT, "checkpoint_seconds=0", f"output_root={tmp_path / 'runs'}"]
    job = torchrun(tmp_path, NOTED, tmp_path, *words, "rounds=5000")
    wait_for_rounds(tmp_path / "runs", 3, job)
    os.kill(int((tmp_path / "1").read_text()), number)
    told = job.communicate(timeout=60)[0]
    assert job.returncode != 0 and told.count(said) == 1, told
    assert result(tmp_path / "runs")["status"] == "interrupted"
    rounds = len((only_folder(tmp_path / "runs") / "metrics.csv").read_text().splitlines()) + 2
    for root in ("runs", "whole"):
        assert run(monkeypatch, tmp_path / root, *COHORT, f"rounds={rounds}") == 0
    assert same_results(tmp_path / "runs", tmp_path / "whole")


def test_shares_are_of_about_equal_cost_and_of_a_fixed_size():
    assert ranks.share([5, 9, 1, 7, 3], 2) == [[1, 0, 2], [3, 4]]
    assert ranks.share([5], 3) == [[0], [], []]


def test_how_a_process_was_started(monkeypatch):
    assert (launch.count(), launch.rank(), launch.is_first()) == (1, 0, True)
    monkeypatch.setenv("RANK", "3")
    assert launch.is_first(), "alone"
    for name, value in {"WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert (launch.count(), launch.rank(), launch.local_count(), launch.local_rank()) == (4, 3, 2, 1)
    assert not launch.is_first()
    assert Hardware().worker_count == max(1, Hardware().cores // 2)
    with pytest.raises(ConfigError, match=r"hardware\.device=cuda:1: .* use cuda"):
        Hardware(device="cuda:1")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match="WORLD_SIZE=two: must be a whole number"):
        launch.count()


def test_a_sweep_is_refused(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(monkeypatch, tmp_path, "-m", "seed=0,1") == 2
    assert "WORLD_SIZE=2: torchrun is for one run" in capfd.readouterr().err
