"""FeSEM: its groups, its proximal term by hand, its neutral setting, its bytes."""

import pytest
import torch
from worlds import LOCAL, assert_mechanisms_agree, gap, make_engine, make_model, make_world, play

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedprox import FedProx
from fedexp.algorithms.fesem import FeSEM
from fedexp.measure.communication import traffic
from fedexp.randomness import generator


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_stack_equals_one_by_one(kind):
    assert_mechanisms_agree(lambda k, local: FeSEM(k, local, clusters=3), kind)


@pytest.mark.parametrize(("mu", "other"), [(0.0, FedAvg), (0.5, FedProx)])
def test_one_cluster_is_fedavg_or_fedprox(mu, other):
    settings = {"mu": mu} if mu else {}
    fesem = play(lambda k, local: FeSEM(k, local, clusters=1, mu=mu), "norm")
    one = {"params": tree.take(fesem["params"], 0)}
    assert gap(one, play(lambda k, local: other(k, local, **settings), "norm")) < 1e-12


def test_first_groups_are_random_and_equal():
    world = make_world()
    model = make_model("linear", world)
    algorithm, drawn = FeSEM(6, LOCAL, clusters=3), []
    for seed in range(4):
        engine = make_engine(model, world, LOCAL, seed=seed)
        state = algorithm.assign(algorithm.init(world, model, model.params()), torch.arange(6), engine)
        assert torch.bincount(state["assigned"]).tolist() == [2, 2, 2]
        drawn.append(tuple(state["assigned"].tolist()))
    assert len(set(drawn)) > 1


def test_later_each_belongs_to_the_nearest_centre():
    """Client 0's last weights are nearest to centre 1, client 1's to centre 0; client 2 never took part."""
    world = make_world([4, 4, 4])
    model = make_model("linear", world)
    algorithm, engine = FeSEM(3, LOCAL, clusters=2), make_engine(model, world, LOCAL)
    state = algorithm.init(world, model, model.params())
    near = lambda *values: {  # noqa: E731
        name: torch.stack([torch.full_like(leaf, value) for value in values]) for name, leaf in model.params().items()
    }
    state |= {"round": 3, "params": near(0.0, 1.0), "last": near(0.8, 0.4, 0.9)}
    state |= {"took_part": torch.tensor([True, True, False]), "assigned": torch.tensor([0, 1, 0])}
    assert algorithm.assign(state, torch.arange(3), engine)["assigned"].tolist() == [1, 0, 0]
    assert algorithm.assign(state, torch.tensor([2, 1]), engine)["assigned"].tolist() == [0, 0, 0]  # who takes part
    assert algorithm.conclude(state, engine) == {"clients_by_cluster": [2, 1]}  # measures ask everyone


def test_clients_leave_their_last_weights():
    world = make_world()
    model = make_model("norm", world)
    engine, algorithm = make_engine(model, world, LOCAL), FeSEM(2, LOCAL, clusters=2)
    state = algorithm.round(
        algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0)
    )  # fmt: skip
    exchange = engine.drain()[0]
    size = tree.size_in_bytes(model.params())
    assert traffic([exchange]) == (2 * size, 2 * size)
    assert set(state["last"]) == set(model.weights)
    assert torch.equal(state["last"]["head.weight"][exchange.ids], exchange.trained.params["head.weight"])
    assert state["took_part"].sum() == 2
