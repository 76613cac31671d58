"""Measures by hand."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from worlds import make_context, make_model, make_world, rounds, start

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg, Stage
from fedexp.config.schema import Evaluate
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure import accuracy
from fedexp.measure.divergence import divergence, layer_divergence, weight_divergence
from fedexp.measure.evaluation import Evaluation
from fedexp.measure.reference import Reference
from fedexp.measure.skew import cohort_emd, emd, mean_emd
from fedexp.round import Round
from fedexp.tree import spread


def test_emd_by_hand():
    """Population (6, 6)/12; client 0 all of class 0: |1 - .5| + |0 - .5| = 1; client 1: |2/8 - .5| * 2 = .5."""
    counts = torch.tensor([[4, 0], [2, 6]])
    assert emd(counts).tolist() == [1.0, 0.5]
    assert abs(mean_emd(counts) - (4 * 1 + 8 * 0.5) / 12) < 1e-12
    assert mean_emd(counts, torch.tensor([0])) == 1.0


def test_emd_of_one_class_clients_is_zhaos_largest():
    assert torch.allclose(emd(torch.eye(10, dtype=torch.int64) * 600), torch.full((10,), 1.8, dtype=torch.float64))
    assert emd(torch.full((5, 10), 3)).abs().max() == 0


def test_divergence_by_hand():
    models = {"layer.weight": torch.tensor([[[3.0, 4.0]], [[0.0, 5.0]]]), "layer.bias": torch.tensor([[0.0], [1.0]])}
    centers = spread({"layer.weight": torch.tensor([[0.0, 5.0]]), "layer.bias": torch.tensor([0.0])}, 2)
    found = weight_divergence(models, centers)
    torch.testing.assert_close(found, torch.tensor([10.0**0.5 / 5, 1 / 5], dtype=torch.float64))
    layers = layer_divergence(models, centers)
    assert list(layers) == ["layer.weight"]
    torch.testing.assert_close(layers["layer.weight"], torch.tensor([10.0**0.5 / 5, 0.0], dtype=torch.float64))


def test_divergence_of_single_precision_weights_is_summed_in_double():
    """2^24 and 1 are the squares of w's entries: their sum has no place in single precision."""
    center = {"w": torch.tensor([[4096.0], [1.0]])}
    models = {"w": torch.tensor([[[4096.0 + 4096.0], [2.0]]])}
    assert weight_divergence(models, spread(center, 1)).tolist() == [1.0]
    models = {"w": torch.tensor([[[4096.0], [2.0]]])}
    expected = (1 / (2**24 + 1)) ** 0.5
    assert weight_divergence(models, spread(center, 1)).tolist() == pytest.approx([expected], rel=1e-15)
    assert layer_divergence(models, spread(center, 1))["w"].tolist() == pytest.approx([expected], rel=1e-15)


def a_round(cohort=(0, 1), **facts):
    """A finished round of FedAvg with the head alone: all that it started from is 0."""
    world = make_world()
    ctx = make_context(make_model("linear", world), world)
    zero = tree.apply(torch.zeros_like, ctx.model.params())
    ids = torch.tensor(cohort)
    nothing = {"update": tree.spread(zero, len(ids))}
    state = {**start(FedAvg(), ctx), "params": zero, "round": 1}
    return replace(Round(FedAvg(), ctx, state, state, ids, nothing, torch.zeros(len(ids)), 0, 0, 0), **facts)


def test_a_round_without_updates_has_no_models_and_no_divergence():
    """Such as one in which clients upload prototypes."""
    done = a_round(uploads={"prototypes": torch.zeros(2, 4)})
    assert done.models == {} and divergence(done) == {}


def test_divergence_of_a_round_is_that_of_its_trained_models_from_the_new_global_model():
    """Client 0 trains to (3, 4), client 1 to (0, 5), the new global model is (0, 5): sqrt(10)/5 and 0; statistics and
    other entries that are not trained have no part in it."""
    done = a_round()
    update = tree.apply(torch.clone, done.uploads["update"])
    update["head.weight"][0, 0, :2], update["head.weight"][1, 0, 1] = torch.tensor([3.0, 4.0]), 5
    params = tree.apply(torch.clone, done.before["params"])
    params["head.weight"][0, 1] = 5
    running = {"running": torch.full((2, 1), 9.0)}
    before = {**done.before, "params": {**done.before["params"], "running": torch.zeros(1)}}
    after = {**done.after, "params": {**params, "running": torch.zeros(1)}}
    found = divergence(replace(done, before=before, after=after, uploads={"update": {**update, **running}}))
    values = {name: float(value) for name, value in found.items()}
    assert values == pytest.approx(
        {"divergence_mean": 10**0.5 / 10, "divergence_max": 10**0.5 / 5,
         "divergence_mean/head.weight": 10**0.5 / 10, "divergence_max/head.weight": 10**0.5 / 5}, rel=1e-15,
    )  # fmt: skip


def test_an_algorithm_that_uploads_no_update_has_no_divergence():
    assert divergence(a_round(uploads={"update": {}})) == {}


def test_emd_of_a_cohort():
    """Of those who took part, against the union of all clients' examples."""
    done = a_round()
    counts = done.ctx.world.label_counts.double()
    distance = (counts / counts.sum(1, keepdim=True) - counts.sum(0) / counts.sum()).abs().sum(1)
    sizes = counts.sum(1)
    expected = float((sizes[0] * distance[0] + sizes[1] * distance[1]) / (sizes[0] + sizes[1]))
    assert cohort_emd(done) == {"cohort_emd": pytest.approx(expected, rel=1e-15)}
    assert cohort_emd(a_round(cohort=(3,)))["cohort_emd"] == pytest.approx(float(distance[3]), rel=1e-15)


@dataclass(frozen=True, kw_only=True)
class Chatty(FedAvg):
    """Sends and uploads more than the model, asks all clients as it begins, and keeps a lot."""

    def memory(self, ctx, params):
        return {"own": torch.zeros(100, dtype=torch.float64)}

    def enter(self, state, ctx):
        self.survey(state, torch.arange(6), {"question": torch.zeros(6, 3, dtype=torch.float32)}, ctx)
        return state

    def inspect(self, model, download, memory, examples):
        return {"answer": examples.label_counts.float()} if "question" in download else {}

    def download(self, state, ids, ctx):
        return {**super().download(state, ids, ctx), "more": torch.zeros(len(ids), 5, dtype=torch.float64)}

    def upload(self, params, client):
        return {**super().upload(params, client), "count": client.size}


@dataclass(frozen=True, kw_only=True)
class Silent(Chatty):
    communicates = False


@pytest.mark.parametrize("workers", [1, 2])
def test_bytes_are_of_every_tensor_that_crosses_and_of_nothing_that_stays(workers):
    """The survey's 6 x 4 floats up and 6 x 3 down come on top of the first round alone."""
    world = make_world()
    ctx = make_context(make_model("linear", world), world, Local(steps=1, batch_size=8), workers=workers)
    model = 8 * (4 * 64 + 4)
    found = [(done.bytes_up, done.bytes_down) for done in rounds(Chatty(), ctx, 2)]
    each = (3 * (model + 8), 3 * (model + 5 * 8))
    assert found == [(each[0] + 6 * 4 * 4, each[1] + 6 * 3 * 4), each]
    assert [(done.bytes_up, done.bytes_down) for done in rounds(Silent(), ctx, 2)][1] == (0, 0)


def evaluation(done, measures=(), rounds=10, **settings):
    reference = Reference(0, done.ctx, lambda: False)
    stages = [Stage("training", done.algorithm, done.ctx)]
    return Evaluation(Evaluate(**settings), dict(measures), reference, stages, done.ctx.world, rounds)


def test_the_mean_local_loss_of_a_cohort_is_made_in_double_precision():
    """A third of 2^24 + 1 + 1: single precision loses the ones."""
    done = a_round(cohort=(0, 1, 2), loss=torch.tensor([2.0**24, 1.0, 1.0]))
    row, tables = evaluation(done).row(Stage("training", FedAvg(), done.ctx), done)
    assert row["local_loss"] == (2**24 + 2) / 3
    assert row["round"] == 1 and tables == {}


def test_a_row_holds_what_each_measure_finds_as_plain_numbers():
    done = a_round()
    one, two = (lambda done: {"one": torch.tensor(0.1)}), (lambda done: {"two": done.number + 1})
    row, tables = evaluation(done, {"a": one, "b": two}, clients="all", on="train").row(
        Stage("s", FedAvg(), done.ctx), done
    )
    assert (row["one"], row["two"]) == (float(torch.tensor(0.1)), 2)
    assert all(isinstance(value, int | float) for value in row.values())
    assert row["client_accuracy_mean"] == pytest.approx(tables["clients"]["accuracy"].mean())


def test_a_measure_that_gives_a_number_without_a_name_is_refused():
    done = a_round()
    with pytest.raises(ConfigError, match=r"measures.a=nameless: must give a dict of numbers by name, .* gave a float"):
        evaluation(done, {"a": nameless}).row(Stage("s", FedAvg(), done.ctx), done)


def nameless(done):
    return 0.5


def test_which_rounds_are_evaluated():
    """Every third one, and the last."""
    due = evaluation(a_round(), rounds=8, every=3)
    assert [number for number in range(1, 9) if due.is_due(number)] == [3, 6, 8]


def test_test_accuracy_and_loss_are_in_double_precision():
    """36 of 40 right reach a target of 0.9; in single precision, 0.89999998 would not."""
    world = make_world(dtype=torch.float32)
    answers = torch.nn.functional.one_hot(world.test_y, 4).float() * 3
    answers[:4] = answers[:4].roll(1, 1)
    right, loss = accuracy.test(lambda x: answers[: len(x)], world, chunk=40)
    assert float(right) == 0.9
    e = math.e**3
    assert float(loss) == pytest.approx(-(36 * math.log(e / (e + 3)) + 4 * math.log(1 / (e + 3))) / 40, rel=1e-6)
    assert right.dtype == loss.dtype == torch.float64


def test_accuracy_of_a_known_predictor():
    world = make_world()
    right, loss = accuracy.test(lambda x: torch.nn.functional.one_hot(world.test_y, 4).double() * 50, world, chunk=40)
    assert float(right) == 1
    assert float(loss) < 1e-6
    first = accuracy.test(lambda x: torch.tensor([[1.0, 0, 0, 0]]).expand(len(x), 4), world, chunk=7)[0]
    assert float(first) == int((world.test_y == 0).sum()) / 40
