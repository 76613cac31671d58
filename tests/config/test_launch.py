"""What a process shows PyTorch of the machine."""

import os

import pytest

from fedexp.config import launch


@pytest.mark.parametrize(
    ("devices", "seen"), [(["cpu", "cpu"], ""), (["cpu", "cuda"], "0,1"), (["auto"], "0,1"), ([], "0,1")]
)
def test_gpus_are_hidden_where_all_runs_are_for_the_cpu(monkeypatch, devices, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    launch.hide_gpus(devices)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
