"""Centralized training: ordinary SGD over the union, without communication."""

import torch
from worlds import by_hand, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Local
from fedexp.measure.communication import traffic
from fedexp.randomness import generator


def test_equals_fedavg_of_a_single_client_with_all_data():
    world = make_world()
    alone = Centralized(3, Local()).adapt(world)
    assert alone.sizes.tolist() == [120]
    assert torch.equal(alone.of(0), world.rows)
    model = make_model("cnn", world)
    local = Local(epochs=1, batch_size=16, lr=0.1)
    states = []
    for algorithm in (Centralized(3, local), FedAvg(1, local)):
        engine = make_engine(model, alone, local)
        states.append(
            algorithm.round(algorithm.init(alone, model, model.params()), alone, engine, generator(0, "round", 0))
        )
        assert (traffic(engine.drain()) == (0, 0)) == isinstance(algorithm, Centralized)
    assert gap(*states) == 0


def test_the_learning_rate_decays_once_a_round():
    """One full-batch step a round on the union, with lr and then with half of it."""
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0, lr_decay=0.5)
    algorithm = Centralized(2, local)
    world = algorithm.adapt(make_world([3, 9]))
    model = make_model("linear", world)
    engine, state = make_engine(model, world, local), algorithm.init(world, model, model.params())
    for round in range(2):
        state = algorithm.round(state, world, engine, generator(0, "round", round))
    expected = by_hand(model, by_hand(model, model.params(), world, 0, 0.5), world, 0, 0.25)
    for name, leaf in expected.items():
        torch.testing.assert_close(state["params"][name], leaf, rtol=0, atol=1e-12)


def test_it_is_not_the_mean_of_clients():
    """Pooling before training differs from averaging after it."""
    pooled = play(lambda k, local: Centralized(k, local), count=1)
    averaged = play(lambda k, local: FedAvg(6, local), count=1)
    assert gap(pooled, averaged) > 1e-3
