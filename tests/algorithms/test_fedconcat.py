"""FedConcat: its three stages, its bytes against the closed form, resuming in each stage."""

import io
from functools import partial

import pytest
import torch
from program import only_folder, result, run
from torch.utils.flop_counter import FlopCounterMode
from worlds import LOCAL, assert_mechanisms_agree, gap, make_engine, make_model, make_world, play

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedconcat import FedConcat, concatenate, encoders, head
from fedexp.algorithms.fedsoft import FedSoft
from fedexp.algorithms.fesem import FeSEM
from fedexp.algorithms.ifca import Ifca
from fedexp.algorithms.label_clusters import LabelClusters
from fedexp.data import Transform
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure import accuracy
from fedexp.measure.communication import traffic
from fedexp.models import Model
from fedexp.models.simple import simple_cnn
from fedexp.randomness import generator

STAGES = {
    "counted": partial(LabelClusters, clusters=2),
    "noisy": partial(LabelClusters, clusters=2, labels="noisy"),
    "random_inputs": partial(LabelClusters, clusters=2, labels="random_inputs", random_inputs=100),
    "bias": partial(LabelClusters, clusters=2, labels="bias"),
    "balanced": partial(LabelClusters, clusters=2, balanced=True),
    "ifca": partial(Ifca, clusters=3),
    "fedsoft": partial(FedSoft, clusters=2),
    "fesem": partial(FeSEM, clusters=2),
}

SHIFTED = Transform(crop=8, pad=2, flip=True)


def make(name="counted", **settings):
    settings = {"encoder_rounds": 2, **settings}
    return lambda k, local: FedConcat(k, local, clustering=STAGES[name], **settings)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("name", STAGES)
def test_stack_equals_one_by_one(name, kind):
    """Two encoder rounds and two classifier rounds."""
    alone, stack = (play(make(name), kind, mechanism, count=4) for mechanism in ("apart", "together"))
    assert gap(alone, stack) < 1e-9
    assert torch.equal(alone["assigned"], stack["assigned"])


@pytest.mark.parametrize("mechanism", ["apart", "together"])
def test_augmented_features_come_anew_and_without_augmentation_are_the_same(mechanism):
    cached, anew = (play(make(augmented=value), "norm", mechanism, count=4) for value in (False, True))
    assert gap(cached, anew) < 1e-12
    cached, anew = (
        play(make(augmented=value), "norm", mechanism, count=4, transform=SHIFTED) for value in (False, True)
    )
    assert gap({"params": encoders(cached["params"])}, {"params": encoders(anew["params"])}) == 0
    assert gap(cached, anew) > 1e-3


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_over_augmented_images_stack_equals_one_by_one(kind):
    assert_mechanisms_agree(make(augmented=True), kind, count=4, transform=SHIFTED)


@pytest.mark.parametrize("augmented", [False, True])
def test_workers_equal_this_process(augmented):
    alone, workers = (
        play(make(augmented=augmented), "norm", "apart", n, torch.float32, transform=SHIFTED, count=4) for n in (1, 2)
    )
    assert gap(alone, workers) < 1e-5


def test_one_cluster_is_fedavg_until_the_head_is_new():
    """And then the encoder rests while FedAvg's moves on."""
    one = partial(LabelClusters, clusters=1)
    states = [play(lambda k, local: FedConcat(k, local, one, 2), count=count)["params"] for count in (2, 4)]
    fedavg = play(lambda k, local: FedAvg(k, local), count=2)["params"]
    for name, leaf in fedavg.items():
        torch.testing.assert_close(states[0][name][0], leaf, rtol=0, atol=1e-12)
    for name in encoders(fedavg):
        assert torch.equal(states[1][name], states[0][name])
    assert float((states[1]["head.weight"] - fedavg["head.weight"]).abs().max()) > 1e-2


def set_up(world=None, kind="cnn", k=6, **settings):
    world = world or make_world()
    model = make_model(kind, world)
    algorithm = make(**settings)(k, LOCAL)
    engine = make_engine(model, world, LOCAL)
    return algorithm, world, model, engine, algorithm.init(world, model, model.params())


def advance(algorithm, state, world, engine, count):
    for _ in range(count):
        state = algorithm.round(state, world, engine, generator(0, "round", state["round"]))
    return state


def test_classifier_started_from_heads_is_the_sum_of_the_clusters_logits():
    algorithm, world, model, engine, state = set_up(classifier_start="heads")
    state = advance(algorithm, state, world, engine, 2)
    x = world.prepare_test(slice(None))
    before = algorithm.predict(state, model, x)
    joined = {**encoders(state["params"]), **algorithm._first_head(state["params"], engine)}
    torch.testing.assert_close(algorithm.predict({**state, "round": 3, "params": joined}, model, x), before)
    both = [model(tree.take(state["params"], row), x, training=False) for row in (0, 1)]
    torch.testing.assert_close(before, both[0] + both[1])


def test_random_classifier_is_a_fresh_linear_layer():
    algorithm, world, _, engine, state = set_up()
    state = advance(algorithm, state, world, engine, 2)
    first = algorithm._first_head(state["params"], engine)
    assert first["head.weight"].shape == (4, 2 * 36)
    assert first["head.bias"].shape == (4,)
    assert 0.9 * 72**-0.5 < float(first["head.weight"].abs().max()) <= 72**-0.5  # U(-1/sqrt(72), 1/sqrt(72))
    again = algorithm._first_head(state["params"], engine)
    assert torch.equal(first["head.weight"], again["head.weight"])


def test_a_classifier_round_by_hand():
    """Clients of 4 and 8 examples, one full-batch step each over frozen features: their unweighted mean."""
    world = make_world([4, 8])
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0, weight_decay=0.3)
    model = make_model("norm", world)
    algorithm = FedConcat(2, local, STAGES["counted"], 1, classifier_steps=1, classifier_weight_decay=0.1)
    engine = make_engine(model, world, local)
    state = advance(algorithm, algorithm.init(world, model, model.params()), world, engine, 1)
    start = algorithm._first_head(state["params"], engine)
    models = [tree.take(state["params"], row) for row in (0, 1)]
    state = advance(algorithm, state, world, engine, 1)
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
        torch.testing.assert_close(state["params"][name], leaf, rtol=0, atol=1e-12)


@pytest.mark.parametrize("augmented", [False, True])
def test_test_features_are_kept_and_give_the_same_accuracy(augmented):
    algorithm, world, model, engine, state = set_up(kind="norm", augmented=augmented)
    for count in (2, 1):
        state = advance(algorithm, state, world, engine, count)
        direct = accuracy.test(lambda x, state=state: algorithm.predict(state, model, x), world)
        kept = accuracy.test(*algorithm.examined(state, engine))
        torch.testing.assert_close(kept, direct)
    assert algorithm.examined(state, engine)[1].test_x.shape == (40, 2 * 36)
    assert len(engine.siblings) == 1 + augmented  # made once


@pytest.mark.parametrize(
    "settings",
    [{"name": name} for name in ("counted", "random_inputs", "fedsoft", "fesem")] + [{"augmented": True}],
    ids=str,
)
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_resuming_in_each_stage_goes_on_to_the_same_weights(stop, settings):
    """A new algorithm and a new engine, given only the saved State: nothing else carries memory."""
    whole = play(make(**settings), "norm", transform=SHIFTED, count=4)
    algorithm, engine = make(**settings)(3, LOCAL), None
    world = make_world(shape=(3, 8, 8), transform=SHIFTED)
    model = make_model("norm", world)
    engine = make_engine(model, world, LOCAL)
    saved = io.BytesIO()
    torch.save(advance(algorithm, algorithm.init(world, model, model.params()), world, engine, stop), saved)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    state = advance(make(**settings)(3, LOCAL), state, world, make_engine(model, world, LOCAL), 4 - stop)
    assert gap(whole, state) == 0


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
    model = Model(simple_cnn((1, 28, 28), 10))
    local = Local(epochs=1, batch_size=64)
    stages = partial(LabelClusters, clusters=5, labels=labels, random_inputs=10)
    algorithm, engine = FedConcat(10, local, stages, encoder_rounds=2), make_engine(model, world, local)
    state, measured = algorithm.init(world, model, model.params()), []
    for _ in range(4):
        state = advance(algorithm, state, world, engine, 1)
        measured.append(sum(traffic(engine.drain())))
    first, encoder, opening, classifier = measured
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
    algorithm, world, model, engine, state = set_up(name=name, k=2)
    measured = []
    for _ in range(4):
        state = advance(algorithm, state, world, engine, 1)
        measured.append(traffic(engine.drain()))
    whole, encoder = (tree.size_in_bytes(part) for part in (model.params(), encoders(model.params())))
    small = tree.size_in_bytes(head(state["params"]))
    first = (2 * whole + 6 * 4 * 4, 2 * whole) if name == "counted" else (6 * whole, 6 * whole)  # shares, or models
    assert measured == [first, (2 * whole, 2 * whole), (2 * small, 2 * small + 6 * 2 * encoder), (2 * small, 2 * small)]


def test_the_outcome_of_the_clustering_is_the_run_s():
    for rounds in (2, 3):
        algorithm, world, _, engine, state = set_up(name="noisy", k=2)
        result = algorithm.conclude(advance(algorithm, state, world, engine, rounds), engine)
        assert result["privacy"]["epsilon"] == 5.0
        assert len(result["clients_by_cluster"]) == 2
        assert sum(result["clients_by_cluster"]) == 6


def test_clients_by_cluster_are_the_choices_among_the_frozen_models():
    """Two of six in a round: not all have been drawn when the encoders are frozen."""
    algorithm, world, _, engine, state = set_up(name="ifca", k=2)
    state = advance(algorithm, state, world, engine, 2)
    chosen = algorithm.conclude(state, engine)
    assert chosen["clients_by_cluster"] != torch.bincount(state["assigned"], minlength=3).tolist()
    for _ in range(2):
        state = advance(algorithm, state, world, engine, 1)
        assert algorithm.conclude(state, engine) == chosen


def test_heads_move_only_in_the_third_stage_and_are_all_that_moves():
    algorithm, world, _, engine, state = set_up()
    state = advance(algorithm, state, world, engine, 3)
    engine.drain()
    state = advance(algorithm, state, world, engine, 1)
    (exchange,) = engine.drain()
    assert set(exchange.trained.params) == {"head.weight", "head.bias"} == set(head(state["params"]))
    assert exchange.trained.steps.tolist() == [3] * 6


def test_feature_map_on_request():
    algorithm, world, _, engine, state = set_up(feature_map=30)
    state = advance(algorithm, state, world, engine, 3)
    assert {"feature_map", "elbow", "label_distributions"} < set(algorithm.exhibits(state, engine))
    assert "feature_map" not in make()(6, LOCAL).exhibits(state, engine)
    smallest = make(feature_map=2)(6, LOCAL).exhibits(state, engine)["feature_map"]
    assert [axes.has_data() for axes in smallest.axes] == [True]


@pytest.mark.parametrize("labels", ["random_inputs", "bias", "bias_published"])
def test_a_diverged_first_round_ends_the_run_as_diverged(monkeypatch, tmp_path, labels):
    """With all pictures: labels cannot be inferred from models that are not finite, nor features be drawn."""
    words = [
        "algorithm=fedconcat_id", f"algorithm.clustering.labels={labels}", "algorithm.clustering.random_inputs=50",
        "algorithm.clustering.clusters=elbow", "algorithm.feature_map=20", "rounds=40", "local.lr=1e18",
    ]  # fmt: skip
    assert run(monkeypatch, tmp_path, *words) == 0
    found = result(tmp_path)
    assert (found["status"], found["rounds"], found["clients_by_cluster"]) == ("diverged", 1, [20])
    assert (only_folder(tmp_path) / "feature_map.png").exists()
    assert not (only_folder(tmp_path) / "elbow.png").exists()


def test_concatenated_features_stand_side_by_side():
    _, world, model, _, _ = set_up()
    models = tree.stack([model.params(), tree.apply(lambda leaf: 2 * leaf, model.params())])
    x = world.prepare(torch.arange(3))
    features = concatenate(model, encoders(models), x)
    torch.testing.assert_close(features[:, :36], model.encode(model.params(), x))
    torch.testing.assert_close(features[:, 36:], model.encode(tree.take(models, 1), x))


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"algorithm\.encoder_rounds=0"):
        FedConcat(1, LOCAL, encoder_rounds=0)
    with pytest.raises(ConfigError, match=r"algorithm\.classifier_start"):
        FedConcat(1, LOCAL, classifier_start="zero")
    with pytest.raises(ConfigError, match=r"algorithm\.feature_map=1: .*at least 2"):
        FedConcat(1, LOCAL, feature_map=1)


def test_keys_of_the_clustering_are_named_where_they_stand():
    world = make_world()
    with pytest.raises(ConfigError, match=r"^algorithm\.clustering\.labels=guessed"):
        FedConcat(1, LOCAL, clustering=partial(LabelClusters, labels="guessed"))
    with pytest.raises(ConfigError, match=r"^algorithm\.clustering\.clusters=9: .*clients=6"):
        FedConcat(1, LOCAL, clustering=partial(LabelClusters, clusters=9)).check(world)
    model = make_model("cnn", world)
    unbiased = {name: leaf for name, leaf in model.params().items() if name != "head.bias"}
    with pytest.raises(ConfigError, match=r"^algorithm\.clustering\.labels=bias: .*no bias"):
        FedConcat(1, LOCAL, clustering=partial(LabelClusters, labels="bias")).init(world, model, unbiased)


@pytest.mark.parametrize(("wrong", "named"), [("ifca", "ifca"), (FedAvg, "FedAvg")])
def test_what_does_not_cluster_is_refused(wrong, named):
    with pytest.raises(ConfigError, match=rf"^algorithm\.clustering={named}: .*algorithm@algorithm\.clustering=ifca"):
        FedConcat(1, LOCAL, clustering=wrong)


def test_a_model_without_an_encoder_is_refused():
    world = make_world()
    model = make_model("linear", world)
    with pytest.raises(ConfigError, match="below its head"):
        FedConcat(1, LOCAL).init(world, model, model.params())


def test_classifier_rounds_are_20_times_cheaper_than_encoder_rounds():
    """simple_cnn on CIFAR's shape, the paper's ten epochs in batches of 64, K = 5; operations counted.

    128 examples a client; with CIFAR-10's 1,250 an encoder round takes ten times as many, a classifier round
    of three batches does not.
    """
    world = make_world([128] * 5, classes=10, shape=(3, 32, 32), dtype=torch.float32)
    model = Model(simple_cnn((3, 32, 32), 10))
    local = Local(epochs=10, batch_size=64)
    algorithm = FedConcat(5, local, partial(LabelClusters, clusters=5), encoder_rounds=1)
    engine = make_engine(model, world, local)
    state, operations = algorithm.init(world, model, model.params()), []
    for _ in range(3):  # an encoder round, one that computes the features too, and another
        with FlopCounterMode(display=False) as counted:
            state = advance(algorithm, state, world, engine, 1)
        operations.append(counted.get_total_flops())
    forward = 5 * 3 * 64 * 2 * (5 * 84) * 10  # 5 clients, 3 batches of 64, a head over 5 encoders; as much backward
    assert 2 * forward <= operations[2] < 2.1 * forward
    assert operations[0] > 20 * operations[2]
