"""Clusters by label distributions: each source of them by hand, its bytes, what is recorded."""

import numpy as np
import pytest
import torch
from worlds import (
    LOCAL,
    assert_mechanisms_agree,
    assert_resumes,
    gap,
    make_context,
    make_model,
    make_world,
    play,
    run_stages,
)

from fedexp import tree
from fedexp.algorithms.label_clusters import LabelClusters
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure.skew import shares
from fedexp.models import Classifier, Model
from fedexp.randomness import generator
from fedexp.system.devices import Devices

SOURCES = ["counted", "noisy", "random_inputs", "bias", "bias_published"]


def clusters(labels="counted", **settings):
    return LabelClusters(**{"clusters": 3, "labels": labels, "random_inputs": 100, **settings})


def skewed():
    """Six clients of three kinds: classes {0, 1}, {2} and {3}; sizes and order mixed."""
    world = make_world([8, 6, 10, 12, 8, 6])
    kinds = [[0, 1], [2], [3], [0, 1], [2], [3]]
    for client, labels in enumerate(kinds):
        rows = world.of(client)
        world.y[rows] = torch.tensor(labels).repeat(len(rows))[: len(rows)]
    return world


def after_one_round(algorithm, world=None, local=LOCAL, cohort=6):
    """(the State, the Round, the context) of all clients, or of `cohort`, in their first round."""
    world = world or skewed()
    ctx = make_context(make_model("cnn", world), world, local, cohort, rounds=1)
    state, ((_, only),) = run_stages(algorithm, ctx)
    return state, only, ctx


def groups(state):
    assigned = state["assigned"]
    return {tuple((assigned == label).nonzero().squeeze(1).tolist()) for label in assigned.unique()}


@pytest.mark.parametrize("labels", SOURCES)
def test_mechanisms_agree(labels):
    assert_mechanisms_agree(clusters(labels), "norm")


@pytest.mark.parametrize("labels", ["noisy", "bias"])
def test_workers_equal_this_process(labels):
    assert gap(play(clusters(labels), "norm"), play(clusters(labels), "norm", workers=2)) == 0


@pytest.mark.parametrize("labels", SOURCES)
def test_it_resumes(labels):
    assert_resumes(clusters(labels), "norm", count=3)


def test_counted_distributions_group_equals():
    state, first, ctx = after_one_round(clusters())
    assert groups(state) == {(0, 3), (1, 4), (2, 5)}
    assert state["distributions"]["counted"][0].tolist() == [0.5, 0.5, 0, 0]
    assert tree.length(state["params"]) == 3
    model = tree.size_in_bytes(ctx.model.params())
    assert (first.bytes_up, first.bytes_down) == (6 * model + 6 * 4 * 4, 6 * model)  # four shares of four bytes, once


def test_the_elbow_finds_the_kinds_of_clients_up_to_a_quarter_of_their_number():
    assert groups(after_one_round(clusters(clusters="elbow"))[0]) == {(0, 1, 2, 3, 4, 5)}  # of six, one
    world = make_world([6] * 16)
    world.y[world.rows] = torch.arange(16).repeat_interleave(6) % 4
    assert len(groups(after_one_round(clusters(clusters="elbow"), world)[0])) == 4


def test_balanced():
    world = make_world([6] * 8)
    world.y[world.rows] = torch.tensor([0, 0, 0, 0, 0, 1, 2, 3]).repeat_interleave(6)
    assert max(map(len, groups(after_one_round(clusters(clusters=2), world)[0]))) > 4
    balanced = after_one_round(clusters(clusters=2, balanced=True), world)[0]
    assert sorted(map(len, groups(balanced))) == [4, 4]


def noise_of(world, seed=0):
    """[N, C]: what clients add to their label distributions, for epsilon 2."""
    ctx = make_context(make_model("linear", world), world, LOCAL, seed=seed)
    sent = run_stages(clusters("noisy", clusters=1, epsilon=2.0), ctx, limit=0)[0]["distributions"]["noisy"]
    return sent - shares(world.label_counts)


def test_noise_is_laplace_of_scale_1_over_epsilon():
    world = make_world([4] * 500, classes=10)
    noise = noise_of(world).flatten()
    assert abs(float(noise.mean())) < 0.03
    assert float(noise.abs().mean()) == pytest.approx(0.5, rel=0.05)  # E|x| = scale; 5,000 draws: sd 0.007
    assert float((noise.abs() > 0.5).double().mean()) == pytest.approx(np.exp(-1), abs=0.03)


def test_a_client_s_noise_is_its_own_and_the_seed_s():
    """However many clients there are, and whatever was drawn before."""
    noise, again, other = noise_of(make_world([4] * 6)), noise_of(make_world([4] * 2)), noise_of(make_world([4] * 2), 1)
    torch.testing.assert_close(again, noise[:2], rtol=0, atol=1e-6)  # distributions are sent in single precision
    assert (other - again).abs().min() > 1e-5
    assert (noise[0] - noise[1]).abs().min() > 1e-5


def test_noise_is_recorded_with_what_it_protects():
    algorithm = clusters("noisy", epsilon=2.5)
    state, _, ctx = after_one_round(algorithm)
    result = algorithm.summary(state, ctx)
    assert set(result["privacy"]) == {"epsilon", "mechanism", "protects", "does_not_protect"}
    assert result["privacy"]["epsilon"] == 2.5
    assert result["privacy"]["mechanism"].startswith("Laplace(0, 1/epsilon)")
    assert sum(result["clients_by_cluster"]) == 6
    assert "privacy" not in clusters().summary(state, ctx)


def test_random_inputs_are_the_mean_softmax_of_each_first_model():
    local = Local(epochs=4, batch_size=4, lr=0.2, momentum=0.9)
    state, first, ctx = after_one_round(clusters("random_inputs", random_inputs=1500), local=local)
    found = state["distributions"]["random_inputs"]
    assert found.sum(1) == pytest.approx(np.ones(6))
    draws = [torch.rand(n, 1, 8, 8, generator=generator(0, "random inputs", at)) for n, at in ((1000, 0), (500, 1000))]
    logits = ctx.model(tree.take(first.models, 2), torch.cat(draws).double(), training=False)
    torch.testing.assert_close(found[2], logits.softmax(1).mean(0).detach(), rtol=0, atol=1e-12)
    assert groups(state) == {(0, 3), (1, 4), (2, 5)}  # and it does tell the kinds of clients apart
    assert list(state["distributions"]) == ["random_inputs", "bias", "bias_published"]


@pytest.mark.parametrize(
    ("settings", "of_four", "of_six"),
    [({}, 1 + 1.5 + 1.75 + 1.875, 6.125 + 1.9375 + 1.96875), ({"bias_path": "published"}, 4, 6)],
)
def test_bias_by_hand(settings, of_four, of_six):
    """With momentum .5 the steps are 1, 1.5, 1.75, ... gradients long; each client takes four or six."""
    local = Local(epochs=2, batch_size=4, lr=0.05, momentum=0.5)
    state, first, ctx = after_one_round(clusters("bias", **settings), local=local)
    before, after = ctx.model.params()["head.bias"], first.models["head.bias"]
    for client, steps in enumerate((4, 4, 6, 6, 4, 4)):  # two epochs of ceil(n / 4) batches
        length = {4: of_four, 6: of_six}[steps]
        expected = (after[client] - before) / (length * 0.05) + before.softmax(0)
        torch.testing.assert_close(state["distributions"]["bias"][client], expected, rtol=0, atol=1e-9)


def test_under_momentum_the_inferred_distributions_are_near_the_true_ones():
    """By the steps taken they are beyond 2, the largest distance there is between two distributions."""
    world, local = skewed(), Local(epochs=20, batch_size=4, lr=0.001, momentum=0.9)
    true, apart = shares(world.label_counts), {}
    for path in ("effective", "published"):
        state, *_ = after_one_round(clusters("bias", bias_path=path), world, local)
        apart[path] = float((state["distributions"]["bias"] - true).abs().sum(1).mean())
        assert groups(state) == {(0, 3), (1, 4), (2, 5)}
    assert apart["effective"] < 0.5
    assert apart["published"] > 2


def test_adam_has_no_steps_to_infer_from():
    adam, world = Local(epochs=1, batch_size=4, lr=0.05, optimizer="adam"), skewed()
    with pytest.raises(ConfigError, match=r"local\.optimizer=adam: must be sgd"):
        clusters("bias").check(make_context(make_model("cnn", world), world, adam))
    state, *_ = after_one_round(clusters("random_inputs", random_inputs=10), world, adam)
    assert list(state["distributions"]) == ["random_inputs", "bias_published"]


def test_published_bias_is_the_softmax_of_the_last_one():
    state, first, _ = after_one_round(clusters("bias_published"))
    torch.testing.assert_close(state["distributions"]["bias_published"], first.models["head.bias"].softmax(1))


@pytest.mark.parametrize("labels", ["random_inputs", "bias"])
def test_inference_trains_everyone_once_from_one_start_and_merges_by_cluster(labels):
    """Two of six take part in a round, but all in the first, which is an encoder round; no labels are sent."""
    world = skewed()
    model = make_model("cnn", world)
    _, done = run_stages(clusters(labels), make_context(model, world, LOCAL, cohort=2, rounds=2))
    first, second = (each for _, each in done)
    assert first.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(second.ids) == 2
    size = tree.size_in_bytes(model.params())
    assert (first.bytes_up, first.bytes_down) == (6 * size, 6 * size)
    assert (second.bytes_up, second.bytes_down) == (2 * size, 2 * size)
    back, state = first.models["head.weight"], first.after
    for label in state["assigned"].unique():
        own = (state["assigned"] == label).nonzero().squeeze(1)
        weights = world.sizes[own] / world.sizes[own].sum()
        expected = (back[own] * weights[:, None, None]).sum(0)
        torch.testing.assert_close(state["params"]["head.weight"][label], expected, rtol=0, atol=1e-6)


def test_a_diverged_first_round_leaves_one_cluster_and_no_elbow():
    """Labels cannot be inferred from models that are not finite."""
    algorithm = clusters("bias", clusters="elbow")
    state, _, ctx = after_one_round(algorithm, local=Local(epochs=2, batch_size=8, lr=1e200, momentum=0.9))
    assert not state["distributions"]["bias"].isfinite().all()
    assert groups(state) == {(0, 1, 2, 3, 4, 5)}
    assert set(algorithm.artifacts(state, ctx)) == {"label_distributions", "label_distributions_first_clients"}
    assert algorithm.summary(state, ctx)["clients_by_cluster"] == [6]


def test_artifacts_show_true_beside_inferred():
    algorithm = clusters("bias")
    state, _, ctx = after_one_round(algorithm)
    shown = algorithm.artifacts(state, ctx)
    table = shown["label_distributions"]
    assert table["true_0"].tolist() == [0.5, 0, 0, 0.5, 0, 0]
    assert table["bias_2"].tolist() == state["distributions"]["bias"][:, 2].tolist()
    assert {"label_distributions_first_clients", "elbow"} < set(shown)
    assert len(shown["label_distributions_first_clients"].axes) == 3


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"labels": "guessed"}, "labels"), ({"epsilon": 0.0}, "epsilon"), ({"slack": 0.5}, "slack"),
     ({"clusters": "five"}, "clusters"), ({"clusters": 0}, "clusters"), ({"random_inputs": 0}, "random_inputs"),
     ({"bias_path": "long"}, "bias_path")],
)  # fmt: skip
def test_settings_are_checked(settings, key):
    with pytest.raises(ConfigError, match=rf"^algorithm\.{key}="):
        LabelClusters(**settings)


@pytest.mark.parametrize("labels", SOURCES)
def test_only_what_is_inferred_from_models_needs_an_answer_from_every_client(labels):
    world = make_world()
    ctx = make_context(make_model("linear", world), world, LOCAL)
    failing = clusters(labels, system=Devices(dropout=0.5))
    if labels in ("counted", "noisy"):
        failing.check(ctx)
    else:
        with pytest.raises(ConfigError, match=r"^system=Devices: LabelClusters needs an answer from every client"):
            failing.check(ctx)


def test_more_clusters_than_clients_and_a_head_without_a_bias_are_refused():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world)
    with pytest.raises(ConfigError, match=r"^algorithm\.clusters=7: .*clients=6"):
        clusters(clusters=7).check(ctx)
    clusters(clusters="elbow").check(ctx)
    unbiased = Model(Classifier(torch.nn.Flatten(), torch.nn.Linear(64, 4, bias=False)).double())
    with pytest.raises(ConfigError, match=r"^algorithm\.labels=bias: needs a head with a bias"):
        clusters("bias").check(make_context(unbiased, world))
    clusters("random_inputs").check(make_context(unbiased, world))
