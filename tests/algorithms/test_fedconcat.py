"""FedConcat: its three stages, its bytes against the closed form, resuming in each stage."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
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
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedconcat import FedConcat, concatenate, encoders, first_head, head
from fedexp.algorithms.fedsoft import FedSoft
from fedexp.algorithms.fesem import FeSEM
from fedexp.algorithms.ifca import Ifca
from fedexp.algorithms.label_clusters import LabelClusters
from fedexp.config.bounds import check_values
from fedexp.data import Transform
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure import accuracy
from fedexp.models import Classifier, Model
from fedexp.models.simple import simple_cnn

STAGES = {
    "counted": LabelClusters(clusters=2),
    "noisy": LabelClusters(clusters=2, labels="noisy"),
    "random_inputs": LabelClusters(clusters=2, labels="random_inputs", random_inputs=100),
    "bias": LabelClusters(clusters=2, labels="bias"),
    "balanced": LabelClusters(clusters=2, balanced=True),
    "ifca": Ifca(clusters=3),
    "fedsoft": FedSoft(clusters=2),
    "fesem": FeSEM(clusters=2),
}

SHIFTED = Transform(crop=8, pad=2, flip=True)


def make(name="counted", **settings):
    return FedConcat(**{"clustering": STAGES[name], "encoder_rounds": 2, **settings})


def after(count, kind="cnn", cohort=6, transform=None, name="counted", **settings):
    """(the State after so many rounds, all Rounds, the context that the run was given)."""
    world = make_world(transform=transform)
    ctx = make_context(make_model(kind, world), world, LOCAL, cohort, count)
    state, done = run_stages(make(name, **settings), ctx)
    return state, [each for _, each in done], ctx


def traffic(done):
    return [(each.bytes_up, each.bytes_down) for each in done]


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("name", STAGES)
def test_mechanisms_agree(name, kind):
    """Two encoder rounds and two classifier rounds."""
    alone, stack = (play(make(name), kind, mechanism, count=4) for mechanism in ("workers", "vectorized"))
    assert gap(alone, stack) < 1e-9
    assert torch.equal(alone["assigned"], stack["assigned"])


@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
def test_augmented_features_come_anew_and_without_augmentation_are_the_same(mechanism):
    cached, anew = (play(make(augmented=value), "norm", mechanism, count=4) for value in (False, True))
    assert gap(cached, anew) < 1e-12
    cached, anew = (
        play(make(augmented=value), "norm", mechanism, count=4, transform=SHIFTED) for value in (False, True)
    )
    assert gap({"params": encoders(cached["params"])}, {"params": encoders(anew["params"])}) == 0
    assert gap(cached, anew) > 1e-3


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_over_augmented_images_mechanisms_agree(kind):
    assert_mechanisms_agree(make(augmented=True), kind, count=4, transform=SHIFTED)


@pytest.mark.parametrize("augmented", [False, True])
def test_workers_equal_this_process(augmented):
    alone, workers = (
        play(make(augmented=augmented), "norm", "workers", n, torch.float32, transform=SHIFTED, count=4) for n in (1, 2)
    )
    assert gap(alone, workers) < 1e-5


def test_one_cluster_is_fedavg_until_the_head_is_new():
    """And then the encoder rests while FedAvg's moves on."""
    one = make(clustering=LabelClusters(clusters=1))
    states = [play(one, count=count)["params"] for count in (2, 4)]
    fedavg = play(FedAvg(), count=2)["params"]
    for name, leaf in fedavg.items():
        torch.testing.assert_close(states[0][name][0], leaf, rtol=0, atol=1e-12)
    for name in encoders(fedavg):
        assert torch.equal(states[1][name], states[0][name])
    assert float((states[1]["head.weight"] - fedavg["head.weight"]).abs().max()) > 1e-2


def test_classifier_started_from_heads_is_the_sum_of_the_clusters_logits():
    state, _, ctx = after(2)
    algorithm = make(classifier_start="heads")
    x = ctx.world.prepare_test(slice(None))
    before = algorithm.predict(state, ctx.model, x)
    both = [ctx.model(tree.take(state["params"], row), x, training=False) for row in (0, 1)]
    torch.testing.assert_close(before, both[0] + both[1])
    joined = algorithm.concatenated(algorithm.stages(ctx)[1].algorithm, state, ctx)
    torch.testing.assert_close(algorithm.predict(joined, ctx.model, x), before)


def test_random_classifier_is_a_fresh_linear_layer():
    state, _, _ = after(2)
    first = first_head(state["params"], "random", seed=0)
    assert first["head.weight"].shape == (4, 2 * 36)
    assert first["head.bias"].shape == (4,)
    assert 0.9 * 72**-0.5 < float(first["head.weight"].abs().max()) <= 72**-0.5  # U(-1/sqrt(72), 1/sqrt(72))


def test_the_random_classifier_is_the_seed_s_alone():
    """Whatever PyTorch's own generator is at, which it leaves where it is: a resumed run makes the same."""
    state, _, _ = after(2)
    heads = []
    for own in (0, 1):
        torch.manual_seed(own)
        heads.append(first_head(state["params"], "random", seed=0)["head.weight"])
        assert torch.initial_seed() == own
    assert torch.equal(*heads)
    other = first_head(state["params"], "random", seed=1)["head.weight"]
    assert float((other - heads[0]).abs().max()) > 1e-3


def test_a_head_without_a_bias_stays_without():
    world = make_world()
    net = make_model("cnn", world).net
    model = Model(Classifier(net.encoder, torch.nn.Linear(36, 4, bias=False).double()))
    state, done = run_stages(make(), make_context(model, world, LOCAL, rounds=4))
    assert set(head(state["params"])) == {"head.weight"}
    assert [name for name, _ in done[-1][1].ctx.model.net.named_parameters()] == ["head.weight"]


def test_a_classifier_round_by_hand():
    """Clients of 4 and 8 examples, one full-batch step each over frozen features: their unweighted mean."""
    world = make_world([4, 8])
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0, weight_decay=0.3)
    model = make_model("norm", world)
    algorithm = make(encoder_rounds=1, classifier_steps=1, classifier_weight_decay=0.1)
    _, done = run_stages(algorithm, make_context(model, world, local, cohort=2, rounds=2))
    last, state = (each.after["params"] for _, each in done)
    start = first_head(last, "random", seed=0)
    models = [tree.take(last, row) for row in (0, 1)]
    expected = {name: torch.zeros_like(leaf) for name, leaf in start.items()}
    for client in (0, 1):
        x = world.prepare(world.of(client))
        features = torch.cat([model.encode(one, x, training=False) for one in models], 1).detach()
        weight, bias = (start[name].clone().requires_grad_() for name in ("head.weight", "head.bias"))
        loss = torch.nn.functional.cross_entropy(features @ weight.T + bias, world.y[world.of(client)])
        loss.backward()
        for name, leaf in (("head.weight", weight), ("head.bias", bias)):
            expected[name] += (leaf - 0.5 * (leaf.grad + 0.1 * leaf)).detach() / 2
    for name, leaf in expected.items():
        torch.testing.assert_close(state[name], leaf, rtol=0, atol=1e-12)


@pytest.mark.parametrize("transform", [None, SHIFTED])
@pytest.mark.parametrize("augmented", [False, True])
def test_test_features_are_computed_once_and_give_the_same_accuracy(augmented, transform):
    algorithm = make(augmented=augmented)
    state, done, ctx = after(4, "norm", transform=transform, augmented=augmented)
    for each in done:
        direct = accuracy.test(lambda x, each=each: algorithm.predict(each.after, ctx.model, x), ctx.world)
        kept = accuracy.test(lambda x, each=each: each.algorithm.predict(each.after, each.ctx.model, x), each.ctx.world)
        torch.testing.assert_close(kept, direct)
    within = done[-1].ctx.world
    assert within.prepare_test(slice(None)).shape == (40, 2 * 36)
    assert within.shape == ((1, 8, 8) if augmented and transform else (2 * 36,))
    assert gap(state, done[-1].after) == 0


@pytest.mark.parametrize("transform", [None, SHIFTED])
def test_over_images_the_head_sees_the_same_features_as_in_evaluation(transform):
    """Un-augmented training images, through the frozen encoders, or as they were computed."""
    state, done, ctx = after(3, "norm", transform=transform, augmented=True)
    rows = torch.arange(5)
    found = done[-1].ctx.model(head(state["params"]), done[-1].ctx.world.prepare(rows), training=False)
    expected = make().predict(state, ctx.model, ctx.world.prepare(rows))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [{"name": name} for name in ("counted", "random_inputs", "ifca", "fedsoft", "fesem")] + [{"augmented": True}],
    ids=str,
)
def test_resuming_in_each_stage_and_between_them_goes_on_to_the_same_weights(settings):
    assert_resumes(make(**settings), "norm", transform=SHIFTED)


def published_bytes(model_entries, head_entries, clusters, encoder_rounds, classifier_rounds):
    """4 bytes times 2 M T_e + K (M - m) + 2 K m T_c (section 4.3)."""
    sent_heads = 2 * clusters * head_entries * classifier_rounds
    return 4 * (2 * model_entries * encoder_rounds + clusters * (model_entries - head_entries) + sent_heads)


@pytest.mark.parametrize("labels", ["counted", "random_inputs"])
def test_bytes_are_the_closed_form(labels):
    """SimpleCNN on Fashion-MNIST's shape, K = 5: measured by the round, then multiplied by the paper's rounds.

    The concatenated head is sent as it is, with one bias: K m counts K of them, C (K - 1) entries more.
    """
    world = make_world([4] * 10, classes=10, shape=(1, 28, 28), dtype=torch.float32)
    local = Local(epochs=1, batch_size=64)
    ctx = make_context(Model(simple_cnn((1, 28, 28), 10)), world, local, 10, rounds=4, precision="float32")
    clustering = LabelClusters(clusters=5, labels=labels, random_inputs=10)
    _, done = run_stages(FedConcat(clustering=clustering, encoder_rounds=2), ctx)
    first, encoder, opening, classifier = (each.bytes_up + each.bytes_down for _, each in done)
    whole, small, clients, classes = 44_426, 850, 10, 10
    assert first == encoder + (clients * classes * 4 if labels == "counted" else 0)
    assert encoder == clients * 4 * 2 * whole
    assert classifier == clients * 4 * 2 * (5 * 84 * 10 + 10)
    assert opening == classifier + clients * 4 * 5 * (whole - small)
    total = 31 * encoder + opening + 172 * classifier
    extra_biases = clients * 4 * 2 * (5 - 1) * classes * 173
    assert total + extra_biases == clients * published_bytes(whole, small, 5, 31, 173)
    assert round((total + extra_biases) / encoder, 1) == 50.0  # FedAvg rounds, as the paper counts
    assert round(total / encoder, 1) == 49.8  # and as they are sent


@pytest.mark.parametrize("name", ["counted", "random_inputs"])
def test_everyone_sends_labels_and_gets_encoders_however_few_take_part(name):
    """Two of six in a round: bytes (up, down) of the first, an encoder round, the first of the head, another."""
    state, done, ctx = after(4, cohort=2, name=name)
    whole, encoder = (tree.size_in_bytes(part) for part in (ctx.model.params(), encoders(ctx.model.params())))
    small = tree.size_in_bytes(head(state["params"]))
    first = (2 * whole + 6 * 4 * 4, 2 * whole) if name == "counted" else (6 * whole, 6 * whole)  # shares, or models
    assert traffic(done) == [
        first, (2 * whole, 2 * whole), (2 * small, 2 * small + 6 * 2 * encoder), (2 * small, 2 * small)
    ]  # fmt: skip


def test_the_outcome_of_the_clustering_is_the_run_s():
    for rounds in (1, 3):
        state, done, _ = after(rounds, name="noisy", cohort=2)
        result = done[-1].algorithm.summary(state, done[-1].ctx)
        assert result["privacy"]["epsilon"] == 5.0
        assert len(result["clients_by_cluster"]) == 2
        assert sum(result["clients_by_cluster"]) == 6


def test_clients_by_cluster_are_the_choices_among_the_frozen_models():
    """Two of six in a round: not all have been drawn when the encoders are frozen."""
    _, done, _ = after(4, name="ifca", cohort=2)
    drawn, chosen, *later = (each.algorithm.summary(each.after, each.ctx) for each in done[1:])
    assert chosen["clients_by_cluster"] != torch.bincount(done[1].after["assigned"], minlength=3).tolist()
    assert all(each == chosen == drawn for each in later)


@pytest.mark.parametrize("single", [True, False])
def test_a_cluster_of_one_class_is_named_in_a_warning(caplog, single):
    """Clients 1 and 4 hold class 2 alone; where client 4 has one example of another class, no cluster has one class."""
    world = make_world()
    labels = world.y.clone()
    labels[torch.cat([world.of(1), world.of(4)])] = 2
    labels[world.of(4)[0]] = 2 if single else 3
    ctx = make_context(make_model(world=world), replace(world, y=labels), LOCAL, 6, 3)
    state, _ = run_stages(make(), ctx)
    assigned = state["assigned"].tolist()
    alone = [cluster for cluster in (0, 1) if {k for k in range(6) if assigned[k] == cluster} == {1, 4}]
    assert len(alone) == 1
    assert caplog.text.count("single class") == single
    assert (f"clusters that hold a single class: {alone[0]};" in caplog.text) == single


def test_heads_move_only_in_the_third_stage_and_are_all_that_moves():
    _, done, _ = after(4)
    last = done[-1]
    assert set(last.models) == {"head.weight", "head.bias"} == set(head(last.after["params"]))
    assert gap({"params": encoders(last.before["params"])}, {"params": encoders(last.after["params"])}) == 0
    assert gap({"params": head(last.before["params"])}, {"params": head(last.after["params"])}) > 1e-3
    assert last.examples == 15 + 24 + 17 + 24 + 24 + 20  # three steps of at most 8, of 5, 40, 17, 30, 8 and 20


def test_feature_map_on_request():
    state, done, _ = after(3, feature_map=30)
    last = done[-1]
    assert {"feature_map", "elbow", "label_distributions"} < set(last.algorithm.artifacts(state, last.ctx))
    assert "feature_map" not in replace(last.algorithm, feature_map=0).artifacts(state, last.ctx)
    smallest = replace(last.algorithm, feature_map=2).artifacts(state, last.ctx)["feature_map"]
    assert [axes.has_data() for axes in smallest.axes] == [True]


def test_concatenated_features_stand_side_by_side():
    world = make_world()
    model = make_model("cnn", world)
    models = tree.stack([model.params(), tree.apply(lambda leaf: 2 * leaf, model.params())])
    x = world.prepare(torch.arange(3))
    features = concatenate(model, encoders(models), x)
    torch.testing.assert_close(features[:, :36], model.encode(model.params(), x))
    torch.testing.assert_close(features[:, 36:], model.encode(tree.take(models, 1), x))


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"encoder_rounds": 0}, "encoder_rounds=0"), ({"classifier_steps": 0}, "classifier_steps=0"),
     ({"classifier_start": "zero"}, "classifier_start=zero"), ({"feature_map": 1}, "feature_map=1: .*at least 2"),
     ({"classifier_weight_decay": -1.0}, r"classifier_weight_decay=-1\.0: .*or null")],
    ids=str,
)  # fmt: skip
def test_settings_are_checked(settings, words):
    with pytest.raises(ConfigError, match=rf"^algorithm\.{words}"):
        FedConcat(**settings)


def test_keys_of_the_clustering_are_named_where_they_stand():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world)
    with pytest.raises(ConfigError, match=r"^algorithm\.clustering\.clusters=9: .*clients=6"):
        make(clustering=LabelClusters(clusters=9)).stages(ctx)
    with pytest.raises(ConfigError, match=r"^algorithm\.clustering\.labels=guessed"):  # as a config is checked
        check_values(LabelClusters, {"labels": "guessed"}, "algorithm.clustering")
    unbiased = Model(Classifier(make_model("cnn", world).net.encoder, torch.nn.Linear(36, 4, bias=False).double()))
    with pytest.raises(ConfigError, match=r"^algorithm\.clustering\.labels=bias: needs a head with a bias"):
        make("bias").stages(make_context(unbiased, world))


@pytest.mark.parametrize(("wrong", "named"), [("ifca", "ifca"), (FedAvg(), "FedAvg"), (Ifca, "type")])
def test_what_does_not_cluster_is_refused(wrong, named):
    with pytest.raises(ConfigError, match=rf"^algorithm\.clustering={named}: .*algorithm@algorithm\.clustering=ifca"):
        FedConcat(clustering=wrong)


def test_a_model_without_an_encoder_is_refused():
    world = make_world()
    with pytest.raises(ConfigError, match="below its head"):
        FedConcat().stages(make_context(make_model("linear", world), world))


def test_classifier_rounds_are_20_times_cheaper_than_encoder_rounds():
    """simple_cnn on CIFAR's shape, the paper's ten epochs in batches of 64, K = 5; operations counted.

    128 examples a client; with CIFAR-10's 1,250 an encoder round takes ten times as many, a classifier round
    of three batches does not.
    """
    world = make_world([128] * 5, classes=10, shape=(3, 32, 32), dtype=torch.float32)
    model = Model(simple_cnn((3, 32, 32), 10))
    ctx = make_context(model, world, Local(epochs=10, batch_size=64), 5, rounds=3, precision="float32")
    algorithm = FedConcat(clustering=LabelClusters(clusters=5), encoder_rounds=1)

    def operations(state, rounds):
        with FlopCounterMode(display=False) as counted:
            state, _ = run_stages(algorithm, ctx, state, rounds)
        return counted.get_total_flops(), state

    encoder_round, state = operations(None, 1)
    classifier_round = operations(state, 2)[0] - operations(state, 1)[0]  # the first computes the features too
    forward = 5 * 3 * 64 * 2 * (5 * 84) * 10  # 5 clients, 3 batches of 64, a head over 5 encoders; as much backward
    assert 2 * forward <= classifier_round < 2.1 * forward
    assert encoder_round > 20 * classifier_round
