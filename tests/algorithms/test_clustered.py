"""What all clustered algorithms share: means by cluster, the measure by client, distinct models."""

import pytest
import torch
from worlds import LOCAL, make_engine, make_model, make_world

from fedexp import tree
from fedexp.algorithms.clustered import Clustered, class_accuracy, distinct, losses, means
from fedexp.errors import ConfigError


def test_each_model_is_the_mean_of_its_own():
    models = {"w": torch.tensor([[1.0], [2.0], [3.0]])}
    returned = {"w": torch.tensor([[10.0], [20.0], [50.0]])}
    weights = torch.tensor([[1, 0, 3], [0, 0, 0], [0, 5, 0]])
    assert means(models, returned, weights)["w"].tolist() == [[40.0], [2.0], [20.0]]


def test_merging_weighs_by_examples_within_the_cluster():
    world = make_world([4, 8, 2])
    model = make_model("linear", world)
    algorithm, engine = Clustered(3, LOCAL, clusters=2), make_engine(model, world, LOCAL)
    state = {**algorithm.init(world, model, model.params()), "assigned": torch.tensor([0, 0, 1])}
    ids = torch.tensor([2, 0, 1])
    sent = algorithm.send(state, ids)
    trained = engine.train(algorithm, state, ids, sent)
    merged = algorithm.merge(state, ids, sent, trained)["params"]["head.weight"]
    back = trained.params["head.weight"]
    torch.testing.assert_close(merged[0], (4 * back[1] + 8 * back[2]) / 12)
    torch.testing.assert_close(merged[1], back[0])


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
    engine = make_engine(model, world, LOCAL)
    models = tree.stack([answering(model, 0), answering(model, 1)])
    by_class, there = class_accuracy(models, engine)
    assert there.all()
    assert by_class.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    algorithm = Clustered(1, LOCAL, clusters=2)
    state = {"round": 1, "params": models, "assigned": torch.tensor([0, 1, 0])}
    assert algorithm.observe(state, engine) == {"assigned_accuracy": pytest.approx((1 / 2 + 1 / 4 + 0) / 3)}
    assert algorithm.conclude(state, engine) == {"clients_by_cluster": [2, 1]}


def test_one_global_model_sums_the_logits():
    world = make_world([4, 4])
    model = make_model("cnn", world)
    models, x = distinct(model.params(), 2), world.prepare(torch.arange(6))
    logits = Clustered(1, LOCAL, clusters=2).predict({"params": models}, model, x)
    both = [model(tree.take(models, row), x) for row in (0, 1)]
    torch.testing.assert_close(logits, both[0] + both[1])
    assert float((both[0] - both[1]).abs().max()) > 1e-3


def test_losses_are_those_of_each_model_on_each_example():
    world = make_world([5, 7])
    model = make_model("linear", world)
    found = losses(tree.stack([answering(model, 0), answering(model, 2)]), 1, make_engine(model, world, LOCAL))
    labels, e = world.y[world.of(1)], torch.e
    for row, label in enumerate((0, 2)):
        right, wrong = -torch.log(torch.tensor(e / (e + 3))), -torch.log(torch.tensor(1 / (e + 3)))
        torch.testing.assert_close(found[row].float(), torch.where(labels == label, right, wrong))


def test_distinct_models_have_the_same_entries_in_other_places():
    params = make_model("norm", make_world()).params()
    models = distinct(params, 3)
    for name, leaf in params.items():
        assert torch.equal(models[name][0], leaf)
        for copy in (1, 2):
            assert torch.equal(models[name][copy].flatten().sort()[0], leaf.flatten().sort()[0])
    assert not torch.equal(models["head.weight"][0], models["head.weight"][1])
    assert not torch.equal(models["head.weight"][1], models["head.weight"][2])


def test_more_clusters_than_clients_are_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.clusters=7.*clients=6"):
        Clustered(1, LOCAL, clusters=7).check(make_world())
    with pytest.raises(ConfigError, match=r"algorithm\.clusters=0"):
        Clustered(1, LOCAL, clusters=0)
    with pytest.raises(ConfigError, match=r"algorithm\.clusters=elbow"):
        Clustered(1, LOCAL, clusters="elbow")
