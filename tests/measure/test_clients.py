"""What each client would use, and how well it does on data of its own: by hand, and for models of clients' own."""

from dataclasses import dataclass
from functools import partial

import pandas as pd
import pytest
import torch
from worlds import SIZES, make_context, make_model, make_world, rounds, run_stages, start

from fedexp import tree
from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedbn import FedBN
from fedexp.algorithms.fedcat import FedCat
from fedexp.algorithms.fedconcat import FedConcat
from fedexp.algorithms.fedper import FedPer
from fedexp.algorithms.fedsoft import FedSoft
from fedexp.algorithms.fesem import FeSEM
from fedexp.algorithms.ifca import Ifca
from fedexp.algorithms.label_clusters import LabelClusters
from fedexp.data import Transform
from fedexp.engine import Local
from fedexp.measure import accuracy
from fedexp.measure.clients import evaluate, received_accuracy, summary
from fedexp.world import World

LOCAL = Local(epochs=5, batch_size=8, lr=0.3)


def light_and_dark(train, test, sizes, held=None):
    """A world in which bright images are taken for class 1, dark ones for class 0: lists of (label, answer).

    sizes: of the clients' examples, in the order of `train`; held: of those after them, held out of training.
    """

    def images(pairs):
        answers = torch.tensor([answer for _, answer in pairs], dtype=torch.uint8)
        return (255 * answers)[:, None, None, None].expand(-1, 1, 8, 8), torch.tensor([label for label, _ in pairs])

    sizes, last = torch.tensor(sizes), len(train)
    rows = torch.arange(sizes.sum())
    more = {"held": torch.arange(sizes.sum(), last), "held_sizes": torch.tensor(held)} if held else {}
    return World(*images(train), *images(test), rows, sizes, 3, Transform(), torch.float64, **more)


def seeing(world):
    """The context of a model that answers 1 for bright images and 0 for dark ones, and its State."""
    model = make_model("linear", world)
    ctx = make_context(model, world, cohort=1)
    state = start(FedAvg(), ctx)
    params = tree.apply(torch.zeros_like, state["params"])
    params["head.weight"][1, 0], params["head.bias"][0], params["head.bias"][2] = 2, 1, -9
    return ctx, {**state, "params": params}


@dataclass(frozen=True, kw_only=True)
class Counting(FedAvg):
    """Trains an entry of its own beside the model, which clients do not use."""

    def start(self, download, memory, found):
        return {**download["model"], "own/scale": torch.ones(2, dtype=torch.float64)}

    def trains(self, model):
        return [*model.weights, "own/scale"]

    def loss(self, model, params, batch, client):
        own = {name: leaf for name, leaf in params.items() if name != "own/scale"}
        return super().loss(model, own, batch, client) + params["own/scale"].square().sum()


@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
@pytest.mark.parametrize("received", [False, True])
def test_what_an_algorithm_trains_beside_the_model_is_not_evaluated(mechanism, received):
    world = make_world()
    ctx = make_context(make_model("linear", world), world, engine=mechanism)
    (done,) = rounds(Counting(), ctx, 1)
    (plain,) = rounds(FedAvg(), ctx, 1)
    if received:
        assert received_accuracy(done) == received_accuracy(plain)
    else:
        found, expected = (
            evaluate(each.algorithm, each.after, torch.arange(6), ctx, world, "train")[1] for each in (done, plain)
        )
        pd.testing.assert_frame_equal(found, expected)


def scored(world, on):
    ctx, state = seeing(world)
    return evaluate(FedAvg(), state, torch.arange(world.clients), ctx, world, on)


def answered(label, right, wrong):
    return [(label, label)] * right + [(label, 1 - label)] * wrong


TEST = [*answered(0, 4, 1), *answered(1, 1, 1)]  # accuracies .8 and .5


def test_matched_is_the_test_accuracy_of_each_class_by_the_clients_own_labels():
    """p = (.75, .25) and class accuracies (.8, .5): .725. Its own answers have no part in it."""
    world = light_and_dark([*answered(0, 0, 3), *answered(1, 0, 1), *answered(1, 2, 0)], TEST, [4, 2])
    found, table = scored(world, "matched")
    assert table["accuracy"].tolist() == pytest.approx([0.725, 0.5], abs=1e-15)
    assert table["examples"].tolist() == [4, 2]
    assert found["client_accuracy_mean"] == pytest.approx(0.6125, abs=1e-15)
    assert found["client_accuracy_weighted"] == pytest.approx((4 * 0.725 + 2 * 0.5) / 6, abs=1e-15)


def test_classes_that_the_test_set_lacks_are_left_out():
    """Class 2 is not tested: a client is scored by what else it has; one that has nothing else has no score."""
    train = [(0, 0), (1, 1), (2, 0), (2, 0), (2, 0), (2, 1), (0, 0)]
    found, table = scored(light_and_dark(train, TEST, [4, 2, 1]), "matched")
    assert table["accuracy"].tolist() == pytest.approx([0.65, float("nan"), 0.8], abs=1e-15, nan_ok=True)
    assert table["examples"].tolist() == [2, 0, 1]
    assert found["client_accuracy_mean"] == pytest.approx(0.725, abs=1e-15)
    assert found["client_accuracy_worst10"] == pytest.approx(0.65, abs=1e-15)


def test_a_class_with_a_single_test_example_counts():
    """Half of class 0 and the one of class 1 are right: .75."""
    _, table = scored(light_and_dark([(0, 0), (1, 1)], [(0, 0), (0, 1), (1, 1)], [2]), "matched")
    assert table["accuracy"].tolist() == [0.75] and table["examples"].tolist() == [2]


@pytest.mark.parametrize("on", ["train", "holdout"])
def test_mean_and_weighted_mean_on_examples_of_their_own(on):
    """.9 of 10 and .5 of 90: .70 and .54."""
    own = [*answered(0, 9, 1), *answered(1, 45, 45)]
    if on == "train":
        world = light_and_dark(own, TEST, [10, 90])
    else:
        world = light_and_dark([(0, 1), (1, 0), *own], TEST, [1, 1], held=[10, 90])
    found, table = scored(world, on)
    assert table["accuracy"].tolist() == [0.9, 0.5]
    assert table["examples"].tolist() == [10, 90]
    assert found == pytest.approx(
        {"client_accuracy_mean": 0.7, "client_accuracy_weighted": 0.54, "client_accuracy_std": 0.2,
         "client_accuracy_sample_std": 0.08**0.5, "client_accuracy_worst10": 0.5}
    )  # fmt: skip


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (10, 1), (11, 2), (25, 3)])
def test_the_worst_tenth(clients, worst):
    """Rounded up, so that there is one at least."""
    accuracy = [(7 * client % clients) / clients for client in range(clients)]
    found = summary(pd.DataFrame({"accuracy": accuracy, "examples": [1] * clients}))
    assert found["client_accuracy_worst10"] == pytest.approx(sum(sorted(accuracy)[:worst]) / worst)


def share_right(predict, world, client):
    rows = world.of(client)
    return float((predict(world.prepare(rows)).argmax(1) == world.y[rows]).double().mean())


def right(model, params, world, client):
    return share_right(lambda x: model(params, x, training=False), world, client)


@pytest.mark.parametrize(("algorithm", "kind", "own"), [(FedPer(), "cnn", "head."), (FedBN(), "norm", "encoder.1.")])
def test_clients_use_what_they_keep_those_never_drawn_what_they_began_with(algorithm, kind, own):
    """After a round, a participant keeps the entries that it trained to, as FedAvg's clients do from one start."""
    world = make_world()
    model = make_model(kind, world)
    ctx = make_context(model, world, LOCAL, cohort=2)
    (plain,), (done,) = rounds(FedAvg(), ctx, 1), rounds(algorithm, ctx, 1)
    assert plain.ids.tolist() == done.ids.tolist()
    everyone = torch.arange(world.clients)
    _, table = evaluate(algorithm, done.after, everyone, ctx, world, "train")
    first = model.params()
    for client in everyone.tolist():
        row = plain.ids.tolist().index(client) if client in plain.ids else None
        kept = first if row is None else tree.take(plain.models, row)
        shared = done.after["params"]
        uses = {name: kept[name] if name.startswith(own) else shared[name] for name in first}
        assert table["accuracy"][client] == right(model, uses, world, client)
    assert evaluate(algorithm, done.after, done.ids, ctx, world, "train")[1].equals(table.loc[done.ids.tolist()])


def test_with_several_models_a_client_uses_the_one_that_suits_its_examples_best():
    """IFCA: also clients that were never drawn."""
    world, algorithm = make_world(), Ifca(clusters=3)
    model = make_model("cnn", world)
    ctx = make_context(model, world, LOCAL, cohort=2)
    state = rounds(algorithm, ctx, 3)[-1].after
    _, table = evaluate(algorithm, state, torch.arange(6), ctx, world, "train")
    models, chosen = tree.unstack(state["params"]), []
    for client in range(6):
        x, y = world.prepare(world.of(client)), world.y[world.of(client)]
        losses = [torch.nn.functional.cross_entropy(model(one, x, training=False), y) for one in models]
        chosen.append(int(torch.stack(losses).argmin()))
        assert table["accuracy"][client] == right(model, models[chosen[-1]], world, client)
    assert len(set(chosen)) > 1


@pytest.mark.parametrize(("kind", "count"), [(FedSoft, 0), (FeSEM, 3), (LabelClusters, 3)])
def test_all_clients_are_scored_with_their_clusters_model(kind, count):
    """Not with the sum of all clusters, which is what the server evaluates as one model."""
    world, algorithm = make_world(), kind(clusters=3)
    model = make_model("cnn", world)
    ctx = make_context(model, world, LOCAL, cohort=3)
    state = rounds(algorithm, ctx, count)[-1].after if count else start(algorithm, ctx)
    _, table = evaluate(algorithm, state, torch.arange(6), ctx, world, "train")
    models, assigned = tree.unstack(state["params"]), algorithm.settled(state, ctx)["assigned"].tolist()
    assert table["accuracy"].tolist() == [right(model, models[own], world, k) for k, own in enumerate(assigned)]
    summed = [share_right(partial(algorithm.predict, state, model), world, client) for client in range(6)]
    assert table["accuracy"].tolist() != summed


def test_all_clients_use_the_model_that_was_trained_without_them():
    world = make_world()
    model = make_model("cnn", world)
    ((_, done),) = run_stages(Centralized(), make_context(model, world, LOCAL, rounds=1))[1]
    _, table = evaluate(Centralized(), done.after, torch.arange(6), done.ctx, world, "train")
    assert table["accuracy"].tolist() == [right(model, done.after["params"], world, client) for client in range(6)]
    assert table["examples"].tolist() == SIZES
    by_class = accuracy.confusion(lambda x: model(done.after["params"], x, training=False), world)
    by_class = by_class.diagonal().double() / by_class.sum(1)
    _, table = evaluate(Centralized(), done.after, torch.arange(6), done.ctx, world, "matched")
    assert table["accuracy"].tolist() == pytest.approx((world.label_shares * by_class).sum(1).tolist())


STARTS = []  # of clients, in the order in which they have trained


@pytest.mark.parametrize("kind", [FedCat, Ifca, FedSoft, FeSEM, LabelClusters, FedPer], ids=lambda kind: kind.__name__)
def test_what_is_received_is_the_clients_own_copy_or_cluster_model(kind):
    """What it really began to train from. Not what the server would evaluate: FedCat's last merged model, the sum of
    all clusters."""

    class Noted(kind):
        def upload(self, params, client):
            STARTS.append(client.start)
            return super().upload(params, client)

    world, algorithm = make_world(), Noted()
    model = make_model("cnn", world)
    STARTS.clear()
    differs = False
    for done in rounds(algorithm, make_context(model, world, LOCAL), 3):
        pairs = zip(done.ids.tolist(), STARTS[len(done.ids) * (done.number - 1) :])
        scores = torch.tensor([right(model, own, world, client) for client, own in pairs], dtype=torch.float64)
        found = received_accuracy(done)
        assert float(found["received_accuracy_mean"]) == float(scores.mean())
        assert float(found["received_accuracy_variance"]) == float(scores.var(correction=0))
        as_one = partial(algorithm.predict, done.before, model)
        differs |= scores.tolist() != [share_right(as_one, world, client) for client in done.ids.tolist()]
    assert differs


@pytest.mark.parametrize("augmented", [False, True])
def test_the_first_concatenated_model_is_the_sum_of_the_clusters(augmented):
    """With heads side by side: what clients receive is then what was evaluated as one model before."""
    algorithm = FedConcat(clustering=Ifca(clusters=2), encoder_rounds=2, classifier_start="heads", augmented=augmented)
    world = make_world()
    model = make_model("cnn", world)
    _, done = run_stages(algorithm, make_context(model, world, LOCAL, cohort=6, rounds=4))
    _, (_, last), (_, first), (_, second) = done
    as_one = partial(last.algorithm.predict, last.after, model)
    summed = torch.tensor([share_right(as_one, world, client) for client in range(6)], dtype=torch.float64)
    found = [float(received_accuracy(each)["received_accuracy_mean"]) for each in (first, second)]
    assert found[0] == float(summed.mean())
    assert found[0] != found[1]
