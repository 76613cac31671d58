"""Disks of every size: a run ends well, or says what it could not save and goes on once there is room."""

import pytest
from disks import resize, small_disk
from program import run, same_results

WORDS = ["checkpoint_seconds=0", "hardware.workers=1", "rounds=3", "dataset=made", "dataset.shape=[1,8,8]",
         "dataset.train=200", "dataset.test=50", "partition=iid"]  # fmt: skip
ENOUGH = "size=4m,nr_inodes=100"


@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_disks_of_random_sizes(monkeypatch, capfd, tmp_path, draw, tally, count):
    assert run(monkeypatch, tmp_path / "whole", *WORDS) == 0
    for _ in range(count):
        options = f"size={4 * draw.randrange(1, 200)}k,nr_inodes={draw.choice([5, 7, 9, 11, 100, 100, 100])}"
        with small_disk(tmp_path / "disk", options) as disk:
            wrong = attempt(monkeypatch, capfd, disk, tmp_path / "whole")
        tally("full disks", options, wrong)


def attempt(monkeypatch, capfd, disk, whole):
    capfd.readouterr()
    code = run(monkeypatch, disk, *WORDS)
    said = capfd.readouterr()
    if code not in (0, 1, 2) or "Traceback" in said.out + said.err:
        return f"ended with {code}: {said.err}"
    if code == 1 and "could not save" not in said.err:
        return "does not say what is missing"
    if code == 2 and "cannot be written to" not in said.err:
        return "was refused for another reason"
    if code == 0:
        return None if same_results(whole, disk) else "gave other results"
    resize(disk, ENOUGH)
    code = run(monkeypatch, disk, *WORDS)
    return None if code == 0 and same_results(whole, disk) else f"did not go on to the same end ({code})"
