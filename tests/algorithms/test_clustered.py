"""What all clustered algorithms share: means by cluster, the measure by client, distinct models."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from worlds import LOCAL, make_context, make_model, make_world, rounds, start

from fedexp import tree
from fedexp.algorithms.clustered import Clustered, distinct, losses
from fedexp.engine import Examples
from fedexp.errors import ConfigError
from fedexp.measure import accuracy
from fedexp.privacy.none import NoPrivacy
from fedexp.randomness import generator
from fedexp.round import personal_models
from fedexp.server_optimizer.momentum import Momentum
from fedexp.server_optimizer.sgd import Sgd


@pytest.mark.parametrize(("lr", "expected"), [(1.0, [40.0, 2.0, 20.0]), (0.5, [20.5, 2.0, 11.5])])
def test_each_model_steps_to_the_mean_of_its_own(lr, expected):
    """Models 1, 2, 3; clients of 1, 5 and 3 examples return 10, 20 and 50, the second one from model 3, the others
    from model 1. Nobody was in model 2's cluster."""
    world = make_world([1, 5, 3])
    model = make_model("linear", world)
    ctx, algorithm = make_context(model, world, LOCAL), Clustered(clusters=3, server_optimizer=Sgd(lr=lr))
    state = {**start(algorithm, ctx), "params": constant(model, 1.0, 2.0, 3.0), "assigned": torch.tensor([0, 2, 0])}
    uploads, ids = {"update": constant(model, 9.0, 17.0, 49.0)}, torch.arange(3)
    after = algorithm.aggregate(state, ids, uploads, ctx, generator(0, "round", 0))
    assert after["params"]["head.bias"].tolist() == [[value] * 4 for value in expected]
    assert after["assigned"].tolist() == [0, 2, 0]


def test_a_round_weighs_by_examples_within_the_cluster():
    world = make_world([4, 8, 2])
    model = make_model("linear", world)
    algorithm, ctx = Clustered(clusters=2), make_context(model, world, LOCAL)
    state = {
        **start(algorithm, ctx),
        "params": distinct(model.params(), 2, model.weights),
        "assigned": torch.tensor([0, 0, 1]),
    }
    (only,) = rounds(algorithm, ctx, 1, state)
    merged, back = only.after["params"]["head.weight"], only.models["head.weight"][only.ids.argsort()]
    torch.testing.assert_close(merged[0], (4 * back[0] + 8 * back[1]) / 12)
    torch.testing.assert_close(merged[1], back[2])
    torch.testing.assert_close(only.centers["head.weight"], merged[torch.tensor([0, 0, 1])[only.ids]])
    size = tree.size_in_bytes(model.params())
    assert (only.bytes_up, only.bytes_down) == (3 * size, 3 * size)


def constant(model, *values):
    """Models of which each has one value everywhere."""
    return {
        name: torch.stack([torch.full_like(leaf, value) for value in values]) for name, leaf in model.params().items()
    }


def answering(model, label):
    """Parameters of a linear model that always answers `label`."""
    params = tree.apply(torch.zeros_like, model.params())
    params["head.bias"][label] = 1.0
    return params


def test_assigned_accuracy_by_hand():
    """Models that always answer 0 and 1. Client 0 (half class 0) gets the first: 1/2. Client 1 (a quarter
    class 1) gets the second: 1/4. Client 2 (only class 3) gets the first: 0."""
    world = make_world([4, 4, 4])
    world.y[world.rows] = torch.tensor([0, 0, 1, 2, 1, 0, 2, 3, 3, 3, 3, 3])
    model = make_model("linear", world)
    ctx = make_context(model, world, LOCAL)
    models = tree.stack([answering(model, 0), answering(model, 1)])
    found = [accuracy.by_class(partial(model, one, training=False), world).tolist() for one in tree.unstack(models)]
    assert found == [[1, 0, 0, 0], [0, 1, 0, 0]] and (world.test_counts > 0).all()
    algorithm = Clustered(clusters=2)
    state = {**start(algorithm, ctx), "params": models, "assigned": torch.tensor([0, 1, 0])}
    assert algorithm.metrics(state, ctx) == {"assigned_accuracy": pytest.approx((1 / 2 + 1 / 4 + 0) / 3)}
    assert algorithm.summary(state, ctx) == {"clients_by_cluster": [2, 1]}
    own = personal_models(algorithm, state, torch.arange(3), ctx)
    assert [int(params["head.bias"].argmax()) for params in own] == [0, 1, 0]


def test_one_global_model_sums_the_logits():
    world = make_world([4, 4])
    model = make_model("cnn", world)
    models, x = distinct(model.params(), 2, model.weights), world.prepare(torch.arange(6))
    logits = Clustered(clusters=2).predict({"params": models}, model, x)
    both = [model(tree.take(models, row), x) for row in (0, 1)]
    torch.testing.assert_close(logits, both[0] + both[1])
    assert float((both[0] - both[1]).abs().max()) > 1e-3


def test_losses_are_those_of_each_model_on_each_example():
    world = make_world([5, 7])
    model = make_model("linear", world)
    found = losses(model, tree.stack([answering(model, 0), answering(model, 2)]), Examples(world, 1, 0))
    labels, e = world.y[world.of(1)], torch.e
    for row, label in enumerate((0, 2)):
        right, wrong = -torch.log(torch.tensor(e / (e + 3))), -torch.log(torch.tensor(1 / (e + 3)))
        torch.testing.assert_close(found[row].float(), torch.where(labels == label, right, wrong))


def test_distinct_models_have_the_same_entries_in_other_places():
    params = make_model("norm", make_world()).params()
    models = distinct(params, 3, [*params])
    for name, leaf in params.items():
        assert torch.equal(models[name][0], leaf)
        for copy in (1, 2):
            assert torch.equal(models[name][copy].flatten().sort()[0], leaf.flatten().sort()[0])
    assert not torch.equal(models["head.weight"][0], models["head.weight"][1])
    assert not torch.equal(models["head.weight"][1], models["head.weight"][2])


def test_distinct_models_share_what_is_not_trained():
    params = {"frozen": torch.arange(50.0), "trained": torch.arange(50.0)}
    models = distinct(params, 2, ["trained"])
    assert models["frozen"][1].equal(params["frozen"]) and not models["trained"][1].equal(params["trained"])


def test_more_clusters_than_clients_are_refused():
    world = make_world()
    with pytest.raises(ConfigError, match=r"algorithm\.clusters=7.*clients=6"):
        Clustered(clusters=7).check(make_context(make_model("linear", world), world))
    with pytest.raises(ConfigError, match=r"algorithm\.clusters=0"):
        Clustered(clusters=0)
    with pytest.raises(ConfigError, match=r"algorithm\.clusters=elbow"):
        Clustered(clusters="elbow")


@dataclass(frozen=True)
class Halved(NoPrivacy):
    """A privacy of its own, which halves the mean update."""

    def perturb(self, mean, cohort, memory, ctx, number):
        return tree.apply(lambda leaf: leaf / 2, mean)


def test_parts_that_cannot_work_are_refused():
    world = make_world()
    ctx, algorithm = make_context(make_model("linear", world), world), Clustered(clusters=2)
    algorithm.check(ctx)
    with pytest.raises(ConfigError, match=r"server_optimizer=Momentum.*sgd"):
        replace(algorithm, server_optimizer=Momentum()).check(ctx)
    with pytest.raises(ConfigError, match=r"privacy=Halved.*none"):
        replace(algorithm, privacy=Halved()).check(ctx)
