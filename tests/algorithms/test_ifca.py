"""IFCA: who chooses which model, its neutral setting, its bytes."""

import pytest
import torch
from worlds import LOCAL, assert_mechanisms_agree, make_engine, make_model, make_world, play

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.ifca import Ifca
from fedexp.measure.communication import traffic
from fedexp.randomness import generator


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_stack_equals_one_by_one(kind):
    assert_mechanisms_agree(lambda k, local: Ifca(k, local, clusters=3), kind)


def test_one_cluster_is_fedavg():
    ifca = play(lambda k, local: Ifca(k, local, clusters=1), "norm")["params"]
    fedavg = play(lambda k, local: FedAvg(k, local), "norm")["params"]
    for name, leaf in fedavg.items():
        torch.testing.assert_close(ifca[name][0], leaf, rtol=0, atol=1e-12)


def test_clients_take_the_model_with_the_smallest_loss():
    """Model c answers class c; each client holds mostly one class."""
    world = make_world([4, 4, 4])
    world.y[world.rows] = torch.tensor([1, 1, 1, 0, 0, 0, 2, 0, 2, 1, 2, 2])
    model = make_model("linear", world)
    engine, algorithm = make_engine(model, world, LOCAL), Ifca(3, LOCAL, clusters=3)
    state = algorithm.init(world, model, model.params())
    biases = torch.eye(4, dtype=torch.float64)[:3]
    state["params"] = {"head.weight": torch.zeros(3, 4, 64, dtype=torch.float64), "head.bias": biases}
    ids = torch.tensor([2, 0, 1])
    state = algorithm.assign(state, ids, engine)
    assert state["assigned"].tolist() == [1, 0, 2]
    assert torch.equal(algorithm.send(state, ids).start["head.bias"], biases[[2, 1, 0]])


def test_measures_ask_every_client_also_those_never_drawn():
    """Each client holds one class, which one model always answers: asked anew, all of them choose that model."""
    world = make_world([4, 4, 4, 4])
    world.y[world.rows] = torch.tensor([1, 0, 2, 2]).repeat_interleave(4)
    model = make_model("linear", world)
    engine, algorithm = make_engine(model, world, LOCAL), Ifca(1, LOCAL, clusters=3)
    biases = torch.eye(4, dtype=torch.float64)[:3]
    models = {"head.weight": torch.zeros(3, 4, 64, dtype=torch.float64), "head.bias": biases}
    state = {"round": 3, "params": models, "assigned": torch.zeros(4, dtype=torch.int64)}
    assert algorithm.observe(state, engine) == {"assigned_accuracy": 1.0}
    assert algorithm.conclude(state, engine) == {"clients_by_cluster": [1, 1, 2]}
    assert engine.drain() == []  # a measure sends nothing
    assert state["assigned"].tolist() == [0] * 4  # nor does it change what follows


def test_identical_starts_all_go_to_the_first_model():
    """The published code's first round: ties everywhere."""
    state = play(lambda _, local: Ifca(6, local, clusters=3, identical_start=True), count=1)
    assert state["assigned"].tolist() == [0] * 6
    assert torch.equal(state["params"]["head.weight"][1], state["params"]["head.weight"][2])
    state = play(lambda _, local: Ifca(6, local, clusters=3), count=1)
    assert len(set(state["assigned"].tolist())) > 1


def test_bytes_are_all_models_down_and_one_up():
    world = make_world()
    model = make_model("norm", world)
    engine, algorithm = make_engine(model, world, LOCAL), Ifca(2, LOCAL, clusters=4)
    algorithm.round(algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0))
    size = tree.size_in_bytes(model.params())
    assert traffic(engine.drain()) == (2 * size, 2 * 4 * size)
