"""One test holds all mechanisms together: alone, in workers, and as one stack give the same weights."""

import pytest
import torch
from conftest import make_engine, make_model, make_world

from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedcat import FedCat
from fedexp.algorithms.fedprox import FedProx
from fedexp.algorithms.scaffold import Scaffold
from fedexp.data import Transform
from fedexp.engine import Local
from fedexp.randomness import generator

LOCAL = Local(
    epochs=2, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-3, lr_decay=0.9, max_grad_norm=1.0
)
ALGORITHMS = {
    "fedavg": lambda k, local: FedAvg(k, local),
    "fedprox": lambda k, local: FedProx(k, local, mu=0.5),
    "scaffold": lambda k, local: Scaffold(k, local),
    "fedcat": lambda k, local: FedCat(k, local),
    "fedcat_gc": lambda k, local: FedCat(k, local, concatenation=False),
    "fedcat_dc": lambda k, local: FedCat(k, local, grouping=False),
    "centralized": lambda k, local: Centralized(k, local),
}


def rounds(make, kind, mechanism, workers, dtype, local=LOCAL, transform=None, count=3):
    world = make_world(dtype=dtype, transform=transform)
    algorithm = make(3, local)
    world = algorithm.adapt(world)
    model = make_model(kind, world, dtype)
    engine = make_engine(model, world, local, mechanism, workers)
    state = algorithm.init(world, model, model.params())
    for round in range(count):
        state = algorithm.round(state, world, engine, generator(0, "round", round))
    engine.close()
    return state["params"]


def gap(first, second):
    return max(float((first[name] - second[name]).abs().max() / first[name].abs().max()) for name in first)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_stack_equals_one_by_one(name, kind):
    """Unequal clients, momentum, weight decay, clipping, dropout and batch statistics; float64."""
    alone = rounds(ALGORITHMS[name], kind, "apart", 1, torch.float64)
    stack = rounds(ALGORITHMS[name], kind, "together", 1, torch.float64)
    assert gap(alone, stack) < 1e-9


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_stack_equals_one_by_one_in_single_precision(kind):
    alone = rounds(ALGORITHMS["fedavg"], kind, "apart", 1, torch.float32)
    stack = rounds(ALGORITHMS["fedavg"], kind, "together", 1, torch.float32)
    assert gap(alone, stack) < 1e-4


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcat"])
def test_workers_equal_this_process(name):
    """Two worker processes of one thread each, against this process with all its threads."""
    alone = rounds(ALGORITHMS[name], "norm", "apart", 1, torch.float32)
    workers = rounds(ALGORITHMS[name], "norm", "apart", 2, torch.float32)
    assert gap(alone, workers) < 1e-5


@pytest.mark.parametrize(
    "change",
    [{"steps": 3}, {"drop_last": True}, {"optimizer": "adam"}, {"momentum": 0.0, "max_grad_norm": None}],
    ids=str,
)
def test_local_settings_agree(change):
    local = Local(**{**vars(LOCAL), **change})
    make = ALGORITHMS["fedprox"]
    alone = rounds(make, "norm", "apart", 1, torch.float64, local)
    stack = rounds(make, "norm", "together", 1, torch.float64, local)
    assert gap(alone, stack) < 1e-9


def test_augmentation_agrees():
    transform = Transform(mean=[0.5], std=[0.25], crop=8, pad=2, pad_mode="reflect", flip=True, rotate=10.0)
    make = ALGORITHMS["fedavg"]
    alone = rounds(make, "cnn", "apart", 1, torch.float64, transform=transform)
    stack = rounds(make, "cnn", "together", 1, torch.float64, transform=transform)
    plain = rounds(make, "cnn", "apart", 1, torch.float64)
    assert gap(alone, stack) < 1e-9
    assert gap(alone, plain) > 1e-3
