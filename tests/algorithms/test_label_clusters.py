"""Clusters by label distributions: each source of them by hand, its bytes, what is recorded."""

import numpy as np
import pytest
import torch
from worlds import LOCAL, make_engine, make_model, make_world

from fedexp import tree
from fedexp.algorithms.label_clusters import LabelClusters, privacy
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure.communication import traffic
from fedexp.randomness import generator


def skewed():
    """Six clients of three kinds: classes {0, 1}, {2} and {3}; sizes and order mixed."""
    world = make_world([8, 6, 10, 12, 8, 6])
    kinds = [[0, 1], [2], [3], [0, 1], [2], [3]]
    for client, labels in enumerate(kinds):
        rows = world.of(client)
        world.y[rows] = torch.tensor(labels).repeat(len(rows))[: len(rows)]
    return world


def after_one_round(world, kind="cnn", local=LOCAL, seed=0, **settings):
    model = make_model(kind, world)
    algorithm = LabelClusters(6, local, clusters=settings.pop("clusters", 3), **settings)
    engine = make_engine(model, world, local, seed=seed)
    state = algorithm.init(world, model, model.params())
    state = algorithm.round(state, world, engine, generator(seed, "round", 0))
    return state, engine, algorithm, model


def groups(state):
    assigned = state["assigned"]
    return {tuple((assigned == label).nonzero().squeeze(1).tolist()) for label in assigned.unique()}


def test_counted_distributions_group_equals():
    world = skewed()
    state, engine, *_ = after_one_round(world)
    assert groups(state) == {(0, 3), (1, 4), (2, 5)}
    assert state["distributions"]["counted"][0].tolist() == [0.5, 0.5, 0, 0]
    assert tree.length(state["params"]) == 3
    model = tree.size_in_bytes(tree.take(state["params"], 0))
    assert traffic(engine.drain()) == (6 * model + 6 * 4 * 4, 6 * model)  # and four shares of four bytes, once


def test_the_elbow_finds_the_kinds_of_clients_up_to_a_quarter_of_their_number():
    assert groups(after_one_round(skewed(), clusters="elbow")[0]) == {(0, 1, 2, 3, 4, 5)}  # of six, one
    world = make_world([6] * 16)
    world.y[world.rows] = torch.arange(16).repeat_interleave(6) % 4
    assert len(groups(after_one_round(world, clusters="elbow")[0])) == 4


def test_balanced():
    world = make_world([6] * 8)
    world.y[world.rows] = torch.tensor([0, 0, 0, 0, 0, 1, 2, 3]).repeat_interleave(6)
    assert max(map(len, groups(after_one_round(world, clusters=2)[0]))) > 4
    assert sorted(map(len, groups(after_one_round(world, clusters=2, balanced=True)[0]))) == [4, 4]


def test_noise_is_laplace_of_scale_1_over_epsilon():
    world = make_world([4] * 500, classes=10)
    algorithm = LabelClusters(1, LOCAL, labels="noisy", epsilon=2.0)
    counts = world.label_counts.double()
    noise = (algorithm._distributions(world, 0) - counts / counts.sum(1, keepdim=True)).flatten()
    assert abs(float(noise.mean())) < 0.03
    assert float(noise.abs().mean()) == pytest.approx(0.5, rel=0.05)  # E|x| = scale; 5,000 draws: sd 0.007
    assert float((noise.abs() > 0.5).double().mean()) == pytest.approx(np.exp(-1), abs=0.03)
    assert torch.equal(algorithm._distributions(world, 0), algorithm._distributions(world, 0))
    assert not torch.equal(algorithm._distributions(world, 0), algorithm._distributions(world, 1))


def test_noise_is_recorded_with_what_it_protects():
    state, engine, algorithm, _ = after_one_round(skewed(), labels="noisy", epsilon=2.5)
    result = algorithm.conclude(state, engine)
    assert result["privacy"] == privacy(2.5)
    assert result["privacy"]["epsilon"] == 2.5
    assert {"protects", "does_not_protect"} <= set(result["privacy"])
    assert "privacy" not in LabelClusters(6, LOCAL).conclude(state, engine)


def test_random_inputs_are_the_mean_softmax_of_each_first_model():
    world = skewed()
    local = Local(epochs=4, batch_size=4, lr=0.2, momentum=0.9)
    state, engine, _, model = after_one_round(world, local=local, labels="random_inputs", random_inputs=1500)
    trained = engine.drain()[0].trained
    found = state["distributions"]["random_inputs"]
    assert found.sum(1) == pytest.approx(np.ones(6))
    draws = [torch.rand(n, 1, 8, 8, generator=generator(0, "random inputs", at)) for n, at in ((1000, 0), (500, 1000))]
    logits = model(tree.take(trained.params, 2), torch.cat(draws).double(), training=False)
    torch.testing.assert_close(found[2], logits.softmax(1).mean(0).detach(), rtol=0, atol=1e-12)
    assert groups(state) == {(0, 3), (1, 4), (2, 5)}  # and it does tell the kinds of clients apart
    assert list(state["distributions"]) == ["random_inputs", "bias", "bias_published"]


@pytest.mark.parametrize("path", ["published", "effective"])
def test_bias_by_hand(path):
    world = skewed()
    local = Local(epochs=2, batch_size=4, lr=0.05, momentum=0.5)
    state, engine, _, model = after_one_round(world, local=local, labels="bias", bias_path=path)
    before, after = model.params()["head.bias"], engine.drain()[0].trained.params["head.bias"]
    for client, steps in enumerate((4, 4, 6, 6, 4, 4)):  # two epochs of ceil(n / 4) batches
        scale = steps * 0.05 / (0.5 if path == "effective" else 1.0)
        expected = (after[client] - before) / scale + before.softmax(0)
        torch.testing.assert_close(state["distributions"]["bias"][client], expected, rtol=0, atol=1e-9)


def test_published_bias_is_the_softmax_of_the_last_one():
    state, engine, *_ = after_one_round(skewed(), labels="bias_published")
    after = engine.drain()[0].trained.params["head.bias"]
    torch.testing.assert_close(state["distributions"]["bias_published"], after.softmax(1))


@pytest.mark.parametrize("labels", ["random_inputs", "bias"])
def test_inference_trains_everyone_once_from_one_start_and_merges_by_cluster(labels):
    """Two of six take part in a round, but all in the first, which is an encoder round; no labels are sent."""
    world = skewed()
    model = make_model("cnn", world)
    algorithm, engine = LabelClusters(2, LOCAL, clusters=3, labels=labels), make_engine(model, world, LOCAL)
    state = algorithm.init(world, model, model.params())
    state = algorithm.round(state, world, engine, generator(0, "round", 0))
    (exchange,) = engine.drain()
    assert exchange.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert state["round"] == 1
    size = tree.size_in_bytes(model.params())
    assert traffic([exchange]) == (6 * size, 6 * size)
    back = exchange.trained.params["head.weight"]
    for label in state["assigned"].unique():
        own = (state["assigned"] == label).nonzero().squeeze(1)
        weights = world.sizes[own] / world.sizes[own].sum()
        expected = (back[own] * weights[:, None, None]).sum(0)
        torch.testing.assert_close(state["params"]["head.weight"][label], expected, rtol=0, atol=1e-6)
    algorithm.round(state, world, engine, generator(0, "round", 1))
    assert [len(exchange.ids) for exchange in engine.drain()] == [2]


def test_exhibits_show_true_beside_inferred():
    world = skewed()
    state, engine, algorithm, _ = after_one_round(world, labels="bias")
    shown = algorithm.exhibits(state, engine)
    table = shown["label_distributions"]
    assert table["true_0"].tolist() == [0.5, 0, 0, 0.5, 0, 0]
    assert table["bias_2"].tolist() == state["distributions"]["bias"][:, 2].tolist()
    assert {"label_distributions_first_clients", "elbow"} < set(shown)
    assert len(shown["label_distributions_first_clients"].axes) == 3


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"labels": "guessed"}, "labels"), ({"epsilon": 0.0}, "epsilon"), ({"slack": 0.5}, "slack"),
     ({"clusters": "five"}, "clusters"), ({"random_inputs": 0}, "random_inputs")],
)  # fmt: skip
def test_settings_are_checked(settings, key):
    with pytest.raises(ConfigError, match=rf"algorithm\.{key}="):
        LabelClusters(1, LOCAL, **settings)
