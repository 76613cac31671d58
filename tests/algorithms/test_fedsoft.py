"""FedSoft: shares by hand, when they are estimated, its loss and merge by hand, its bytes."""

import pytest
import torch
from worlds import LOCAL, assert_mechanisms_agree, make_engine, make_model, make_world, play

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedsoft import FedSoft
from fedexp.engine import Local, Sent
from fedexp.measure.communication import traffic
from fedexp.randomness import generator


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_stack_equals_one_by_one(kind):
    assert_mechanisms_agree(lambda k, local: FedSoft(k, local, clusters=3, mu=0.3), kind)


def test_one_cluster_without_a_proximal_term_is_fedavg():
    soft = play(lambda k, local: FedSoft(k, local, clusters=1, mu=0.0), "norm")["params"]
    fedavg = play(lambda k, local: FedAvg(k, local), "norm")["params"]
    for name, leaf in fedavg.items():
        torch.testing.assert_close(soft[name][0], leaf, rtol=0, atol=1e-7)  # shares of examples are float32 there


def answering(clusters):
    """Linear models of which number c always answers class c."""
    biases = torch.eye(4, dtype=torch.float64)[:clusters]
    return {"head.weight": torch.zeros(clusters, 4, 64, dtype=torch.float64), "head.bias": biases}


def test_shares_count_examples_and_have_a_floor():
    """Three examples of class 1 and one of class 2: shares floor, 3/4, 1/4."""
    world = make_world([4, 4])
    world.y[world.rows] = torch.tensor([1, 2, 1, 1, 0, 0, 0, 0])
    model = make_model("linear", world)
    engine, algorithm = make_engine(model, world, LOCAL), FedSoft(2, LOCAL, clusters=3)
    state = {**algorithm.init(world, model, model.params()), "params": answering(3)}
    state = algorithm.assign(state, torch.tensor([0, 1]), engine)
    expected = torch.tensor([[1e-4, 0.75, 0.25], [1.0, 1e-4, 1e-4]], dtype=torch.float64)
    torch.testing.assert_close(state["importance"], expected)
    assert state["assigned"].tolist() == [1, 0]


def test_shares_stand_for_an_interval():
    world = make_world([4, 4])
    world.y[world.rows] = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])
    model = make_model("linear", world)
    engine, algorithm = make_engine(model, world, LOCAL), FedSoft(1, LOCAL, clusters=2, interval=2)
    state = {**algorithm.init(world, model, model.params()), "params": answering(2)}
    first = algorithm.assign(state, torch.tensor([0]), engine)
    assert first["estimated"].tolist() == [0, -2]
    swapped = {**first, "round": 1, "params": tree.take(answering(2), torch.tensor([1, 0]))}
    second = algorithm.assign(swapped, torch.tensor([0, 1]), engine)  # only client 1 is due
    assert second["assigned"].tolist() == [1, 1]
    third = algorithm.assign({**second, "round": 2}, torch.tensor([0, 1]), engine)
    assert third["assigned"].tolist() == [0, 1]
    assert third["estimated"].tolist() == [2, 1]


def test_measures_ask_every_client_also_those_never_drawn():
    """By largest share of examples: 3/4 of class 1, all of class 0, 3/4 of class 2. Only client 1 has an estimate."""
    world = make_world([4, 4, 4])
    world.y[world.rows] = torch.tensor([1, 2, 1, 1, 0, 0, 0, 0, 2, 0, 2, 2])
    model = make_model("linear", world)
    engine, algorithm = make_engine(model, world, LOCAL), FedSoft(1, LOCAL, clusters=3)
    state = {**algorithm.init(world, model, model.params()), "params": answering(3)}
    state = algorithm.assign(state, torch.tensor([1]), engine)
    assert state["assigned"].tolist() == [0, 0, 0]
    score = (3 / 4 + 1 + 3 / 4) / 3
    assert algorithm.observe(state, engine) == {"assigned_accuracy": pytest.approx(score)}
    assert algorithm.conclude(state, engine) == {"clients_by_cluster": [1, 1, 1]}
    assert engine.drain() == []
    assert state["estimated"].tolist() == [-2, 0, -2]


def test_proximal_step_and_merge_by_hand():
    """The first step's pull is -lr mu sum_s u_s (w - w_s): the class-0 logits' bias starts at 1 in model 0,
    at 0 in model 1. Without a proximal term the same step lacks just that."""
    world = make_world([4])
    world.y[world.of(0)] = torch.tensor([0, 0, 0, 1])
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0)
    back = {}
    for mu in (0.0, 0.8):
        engine, algorithm = make_engine(model, world, local), FedSoft(1, local, clusters=2, mu=mu)
        state = {**algorithm.init(world, model, model.params()), "params": answering(2)}
        ids = torch.tensor([0])
        state = algorithm.assign(state, ids, engine)
        sent = algorithm.send(state, ids)
        trained = engine.train(algorithm, state, ids, sent)
        back[mu] = trained.params["head.bias"][0]
        merged = algorithm.merge(state, ids, sent, trained)
        assert torch.equal(merged["params"]["head.bias"], trained.params["head.bias"].expand(2, -1))
    # Shares 3/4 (model 0, the start) and 1/4 (model 1).
    pull = -0.5 * 0.8 * 0.25 * torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(back[0.8] - back[0.0], pull, rtol=0, atol=1e-12)


def test_merge_weighs_by_examples_and_shares():
    algorithm = FedSoft(2, LOCAL, clusters=2)
    world = make_world([3, 5])
    model = make_model("linear", world)
    state = algorithm.init(world, model, model.params())
    state["importance"] = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    engine, ids = make_engine(model, world, LOCAL), torch.tensor([0, 1])
    trained = engine.train(algorithm, state, ids, algorithm.send(state, ids))
    merged = algorithm.merge(state, ids, Sent({}), trained)["params"]["head.weight"]
    w = trained.params["head.weight"]
    torch.testing.assert_close(merged[0], (3 * 0.9 * w[0] + 5 * 0.4 * w[1]) / (2.7 + 2.0))
    torch.testing.assert_close(merged[1], (3 * 0.1 * w[0] + 5 * 0.6 * w[1]) / (0.3 + 3.0))


def test_bytes_are_all_models_down_and_one_up():
    world = make_world()
    model = make_model("norm", world)
    engine, algorithm = make_engine(model, world, LOCAL), FedSoft(2, LOCAL, clusters=4)
    state = algorithm.init(world, model, model.params())
    size = tree.size_in_bytes(model.params())
    for round in range(2):  # every round needs all centres, whether or not shares are estimated
        state = algorithm.round(state, world, engine, generator(0, "round", round))
        assert traffic(engine.drain()) == (2 * size, 2 * 4 * size)
