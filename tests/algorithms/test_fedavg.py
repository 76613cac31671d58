"""FedAvg by hand, its bytes, and its selection."""

import pytest
import torch
import torch.nn.functional as F
from worlds import by_hand, make_engine, make_model, make_world

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Local
from fedexp.measure.communication import traffic
from fedexp.randomness import generator


def test_one_round_is_the_mean_of_the_clients_weighted_by_their_examples():
    world = make_world([3, 9])
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0)
    start = model.params()
    algorithm, engine = FedAvg(2, local), make_engine(model, world, local)
    state = algorithm.round(
        algorithm.init(world, model, start), world, engine, generator(0, "round", 0)
    )  # fmt: skip
    first, second = (by_hand(model, start, world, client, 0.5) for client in (0, 1))
    for name in start:
        expected = 0.25 * first[name] + 0.75 * second[name]
        torch.testing.assert_close(state["params"][name], expected, rtol=0, atol=1e-12)
    assert state["round"] == 1


@pytest.mark.parametrize("mechanism", ["apart", "together"])
def test_the_learning_rate_decays_once_a_round(mechanism):
    """One full-batch step a round: with lr in the first, with half of it in the second."""
    world = make_world([3, 9])
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0, lr_decay=0.5)
    algorithm, engine = FedAvg(2, local), make_engine(model, world, local, mechanism)
    state = algorithm.init(world, model, model.params())
    expected = model.params()
    for round, rate in enumerate((0.5, 0.25)):
        state = algorithm.round(state, world, engine, generator(0, "round", round))
        first, second = (by_hand(model, expected, world, client, rate) for client in (0, 1))
        expected = {name: 0.25 * first[name] + 0.75 * second[name] for name in expected}
    for name, leaf in expected.items():
        torch.testing.assert_close(state["params"][name], leaf, rtol=0, atol=1e-12)


def test_momentum_and_weight_decay_follow_sgd():
    """Two full-batch steps of one client equal torch.optim.SGD's."""
    world = make_world([12])
    model = make_model("linear", world)
    local = Local(epochs=2, batch_size=100, lr=0.5, momentum=0.9, weight_decay=0.1)
    start = model.params()
    engine = make_engine(model, world, local)
    algorithm = FedAvg(1, local)
    state = algorithm.round(algorithm.init(world, model, start), world, engine, generator(0, "round", 0))
    weights = [start[name].clone().requires_grad_() for name in ("head.weight", "head.bias")]
    optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.9, weight_decay=0.1)
    x = (world.x[world.rows].double() / 255).flatten(1)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(x @ weights[0].T + weights[1], world.y[world.rows]).backward()
        optimizer.step()
    torch.testing.assert_close(state["params"]["head.weight"], weights[0].detach(), rtol=0, atol=1e-12)


def test_bytes_are_one_model_each_way():
    world = make_world()
    model = make_model("norm", world)
    local = Local(epochs=1, batch_size=8)
    engine, algorithm = make_engine(model, world, local), FedAvg(3, local)
    algorithm.round(algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0))
    entries = 4 * 9 + 4 + 4 * 4 + 36 * 4 + 4  # convolution, BatchNorm (weights and statistics), head
    assert traffic(engine.drain()) == (3 * entries * 8, 3 * entries * 8)
    assert engine.drain() == []


def test_selection_is_uniform_without_replacement():
    world = make_world()
    algorithm = FedAvg(3, Local())
    drawn = [algorithm.select({}, world, generator(0, "round", round)) for round in range(2000)]
    assert all(len(set(ids.tolist())) == 3 for ids in drawn)
    counts = torch.bincount(torch.cat(drawn), minlength=6)
    assert (counts - 1000).abs().max() < 120  # binomial(2000, 1/2): sd 22
