"""One test holds all mechanisms together: alone, in workers, and as one stack give the same weights."""

import pytest
import torch
from worlds import LOCAL, assert_mechanisms_agree, gap, play

from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedcat import FedCat
from fedexp.algorithms.fedprox import FedProx
from fedexp.algorithms.scaffold import Scaffold
from fedexp.data import Transform
from fedexp.engine import Local

ALGORITHMS = {
    "fedavg": lambda k, local: FedAvg(k, local),
    "fedprox": lambda k, local: FedProx(k, local, mu=0.5),
    "scaffold": lambda k, local: Scaffold(k, local),
    "fedcat": lambda k, local: FedCat(k, local),
    "fedcat_gc": lambda k, local: FedCat(k, local, concatenation=False),
    "fedcat_dc": lambda k, local: FedCat(k, local, grouping=False),
    "centralized": lambda k, local: Centralized(k, local),
}


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_stack_equals_one_by_one(name, kind):
    """Unequal clients, momentum, weight decay, clipping, dropout and batch statistics; float64."""
    assert_mechanisms_agree(ALGORITHMS[name], kind)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_stack_equals_one_by_one_in_single_precision(kind):
    alone = play(ALGORITHMS["fedavg"], kind, "apart", dtype=torch.float32)
    stack = play(ALGORITHMS["fedavg"], kind, "together", dtype=torch.float32)
    assert gap(alone, stack) < 1e-4


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcat"])
def test_workers_equal_this_process(name):
    """Two worker processes of one thread each, against this process with all its threads."""
    alone = play(ALGORITHMS[name], "norm", "apart", dtype=torch.float32)
    workers = play(ALGORITHMS[name], "norm", "apart", workers=2, dtype=torch.float32)
    assert gap(alone, workers) < 1e-5


@pytest.mark.parametrize(
    "change",
    [{"steps": 3}, {"drop_last": True}, {"optimizer": "adam"}, {"momentum": 0.0, "max_grad_norm": None}],
    ids=str,
)
def test_local_settings_agree(change):
    local = Local(**{**vars(LOCAL), **change})
    assert_mechanisms_agree(ALGORITHMS["fedprox"], "norm", local=local)


def test_augmentation_agrees():
    transform = Transform(mean=[0.5], std=[0.25], crop=8, pad=2, pad_mode="reflect", flip=True, rotate=10.0)
    make = ALGORITHMS["fedavg"]
    assert_mechanisms_agree(make, transform=transform)
    assert gap(play(make, transform=transform), play(make)) > 1e-3
