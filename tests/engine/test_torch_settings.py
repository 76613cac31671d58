"""Whatever a program has set in PyTorch, a run computes as in a fresh process, and leaves it set."""

import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch
from composing import checked
from program import FEW, SMALL, run, same_results

from fedexp import experiment
from fedexp.engine.torch_settings import _settings, of_a_fresh_process

WORDS = [*SMALL, *FEW, "model.hidden=8", "rounds=1"]


def state():
    """All that is looked after here, where None is what PyTorch refuses to tell."""
    values = []
    for setting in _settings():
        try:
            values.append(setting.read())
        except RuntimeError:
            values.append(None)
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    return [*values, *modes, torch.empty(0).device]


@pytest.fixture(autouse=True)
def put_back():
    with of_a_fresh_process():  # whatever a test sets, the others find what was there
        pass
    before = [(each.write, each.read()) for each in _settings()]
    yield
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    for write, value in before:
        write(value)


def test_what_is_fresh_is_what_a_new_process_has():
    """Where the two interfaces disagreed, PyTorch would refuse to compute on a GPU."""
    code = "from fedexp.engine.torch_settings import _settings; print([each.read() for each in _settings()])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert told == str([each.fresh for each in _settings()])
    with of_a_fresh_process():
        assert told == str([each.read() for each in _settings()])


def _newer_interface():
    torch.backends.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.backends.cuda.matmul.fp32_precision = "tf32"


@pytest.mark.parametrize("change", [
    lambda: None,
    lambda: torch.set_float32_matmul_precision("medium"),
    lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    lambda: setattr(torch.backends.cudnn, "benchmark", True),
    pytest.param(_newer_interface, marks=pytest.mark.skipif(
        not hasattr(torch.backends, "fp32_precision"), reason="this PyTorch has one interface alone")),
    lambda: (torch.set_default_dtype(torch.float64), torch.set_default_device("meta"), torch.set_grad_enabled(False)),
])  # fmt: skip
def test_settings_are_fresh_within_a_run_and_afterwards_what_they_were(change):
    with of_a_fresh_process():
        fresh = state()
    change()
    before = state()
    with of_a_fresh_process():
        assert state() == fresh
        torch.set_float32_matmul_precision("high")  # as an engine does
        torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.deterministic = True
        with of_a_fresh_process():
            pass
        assert torch.backends.cudnn.deterministic  # a run that ends leaves what another one, not yet at its end, uses
    told = [number for number, value in enumerate(before) if value is not None]  # the others follow from these
    after = state()
    assert [after[number] for number in told] == [before[number] for number in told]


def test_a_run_gives_the_same_bits_and_leaves_all_as_it_was(monkeypatch, tmp_path):
    assert run(monkeypatch, tmp_path / "shell", *WORDS) == 0
    config = checked(*WORDS, f"output_root={tmp_path}/notebook")
    config.hardware.precision = "tf32"  # which `checked` refuses on a CPU, where nothing is computed with it
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), ExitStack() as held:
        torch.set_default_dtype(torch.float64)
        torch.backends.mkldnn.enabled = False
        held.enter_context(torch.device("meta"))
        before = state()
        experiment.run(config)
        assert state() == before
        config.hardware.precision = "float32"
        config.output_root = str(tmp_path / "float32")
        experiment.run(config)
    assert same_results(tmp_path / "shell", tmp_path / "float32")
