"""FedAvg by hand, its bytes, and its selection."""

import pytest
import torch
import torch.nn.functional as F
from worlds import by_hand, make_context, make_model, make_world, rounds, start

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Local
from fedexp.randomness import generator


def test_one_round_is_the_mean_of_the_clients_weighted_by_their_examples():
    world = make_world([3, 9])
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0)
    (only,) = rounds(FedAvg(), make_context(model, world, local, cohort=2), 1)
    w0 = model.params()
    first, second = (by_hand(model, w0, world, client, 0.5) for client in (0, 1))
    for name in w0:
        expected = 0.25 * first[name] + 0.75 * second[name]
        torch.testing.assert_close(only.after["params"][name], expected, rtol=0, atol=1e-12)
    assert only.after["round"] == only.number == 1


@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
def test_the_learning_rate_decays_once_a_round(mechanism):
    """One full-batch step a round: with lr in the first, with half of it in the second."""
    world = make_world([3, 9])
    model = make_model("linear", world)
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0, lr_decay=0.5)
    state = rounds(FedAvg(), make_context(model, world, local, 2, engine=mechanism), 2)[-1].after
    expected = model.params()
    for rate in (0.5, 0.25):
        first, second = (by_hand(model, expected, world, client, rate) for client in (0, 1))
        expected = {name: 0.25 * first[name] + 0.75 * second[name] for name in expected}
    for name, leaf in expected.items():
        torch.testing.assert_close(state["params"][name], leaf, rtol=0, atol=1e-12)


def test_momentum_and_weight_decay_follow_sgd():
    """Two full-batch steps of one client equal torch.optim.SGD's."""
    world = make_world([12])
    model = make_model("linear", world)
    local = Local(epochs=2, batch_size=100, lr=0.5, momentum=0.9, weight_decay=0.1)
    (only,) = rounds(FedAvg(), make_context(model, world, local, cohort=1), 1)
    w0 = model.params()
    weights = [w0[name].clone().requires_grad_() for name in ("head.weight", "head.bias")]
    optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.9, weight_decay=0.1)
    x = (world.x[world.rows].double() / 255).flatten(1)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(x @ weights[0].T + weights[1], world.y[world.rows]).backward()
        optimizer.step()
    torch.testing.assert_close(only.after["params"]["head.weight"], weights[0].detach(), rtol=0, atol=1e-12)


def test_bytes_are_one_model_each_way():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, Local(epochs=1, batch_size=8))
    entries = 4 * 9 + 4 + 4 * 4 + 36 * 4 + 4  # convolution, BatchNorm (weights and statistics), head
    for done in rounds(FedAvg(), ctx, 2):
        assert (done.bytes_up, done.bytes_down) == (3 * entries * 8, 3 * entries * 8)


def test_selection_is_uniform_without_replacement():
    world = make_world()
    ctx = make_context(make_model("linear", world), world)
    state = start(FedAvg(), ctx)
    drawn = [FedAvg().select(state, ctx, generator(0, "round", number)) for number in range(2000)]
    assert all(len(set(ids.tolist())) == 3 for ids in drawn)
    counts = torch.bincount(torch.cat(drawn), minlength=6)
    assert (counts - 1000).abs().max() < 120  # binomial(2000, 1/2): sd 22
