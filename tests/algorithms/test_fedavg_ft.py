"""FedAvg with fine-tuning: a step by hand, what is left as it was, what is evaluated, mechanisms."""

from dataclasses import replace

import pytest
import torch
from composing import composed
from program import metrics, only_folder, run
from quadratics import Quadratic, pair, weight
from torch import nn
from worlds import LOCAL, assert_resumes, gap, make_context, make_model, make_world, play, rounds

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedavg_ft import FedAvgFT
from fedexp.building import build_algorithm
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure.clients import evaluate
from fedexp.models import Model
from fedexp.round import tuned_models


class OnQuadratics(FedAvgFT, Quadratic):
    """FedAvg with fine-tuning over quadratics."""


def tuned(algorithm, done, ids):
    """What clients `ids` have after each length of fine-tuning."""
    ids = torch.tensor(ids)
    found = {
        name: tuned_models(each, algorithm, done.after, ids, done.ctx) for name, each in algorithm.tuning().items()
    }
    done.ctx.engine.close()
    return found


def test_steps_by_hand():
    """One step each from w = 1.1: .99 and 1.39; two: .891 and 1.651."""
    (done,) = rounds(OnQuadratics(tuning_epochs=[1, 2]), pair(), 1)
    found = tuned(OnQuadratics(tuning_epochs=[1, 2]), done, [0, 1])
    assert weight(done.after["params"]) == pytest.approx(1.1)
    assert list(map(weight, found["tuned_1"])) == pytest.approx([0.99, 1.39])
    assert list(map(weight, found["tuned_2"])) == pytest.approx([0.891, 1.651])


def test_the_learning_rate():
    """That of the round to come, or its own; momentum begins anew."""
    local = Local(steps=1, batch_size=100, lr=0.1, momentum=0.9, lr_decay=0.5)
    for lr, expected in ((None, 0.05), (0.2, 0.1)):
        algorithm = OnQuadratics(tuning_epochs=[1], tuning_lr=lr)
        (done,) = rounds(algorithm, pair(local=local), 1)
        w = weight(done.after["params"])
        assert weight(tuned(algorithm, done, [0])["tuned_1"][0]) == pytest.approx(w - expected * w)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_rounds_are_fedavg_s(kind):
    assert gap(play(FedAvgFT(), kind), play(FedAvg(), kind)) == 0


def test_bytes_are_fedavg_s_and_evaluation_is_free():
    world = make_world()
    model = make_model("norm", world)
    ctx = make_context(model, world, LOCAL)
    algorithm = FedAvgFT(tuning_epochs=[1])
    (only,) = rounds(algorithm, ctx, 1)
    assert only.bytes_up == only.bytes_down == 3 * tree.size_in_bytes(model.params())
    evaluate(algorithm, only.after, torch.arange(6), ctx, world, "train")
    assert ctx.engine.drain() == (0, 0)


def norm_round(algorithm, **settings):
    world = make_world()
    return rounds(algorithm, make_context(make_model("norm", world), world, LOCAL, **settings), 1)[0]


@pytest.mark.parametrize("layers", ["all", "head", "body"])
def test_layers(layers):
    """Only they move; but running statistics do, which are the client's own then."""
    algorithm = FedAvgFT(tuning_epochs=[1], tuning_layers=layers)
    done = norm_round(algorithm)
    (found,) = tuned(algorithm, done, [2])["tuned_1"]
    moved = {name for name, value in found.items() if not value.equal(done.after["params"][name])}
    head = {"head.weight", "head.bias"}
    statistics = {"encoder.1.running_mean", "encoder.1.running_var"}
    assert moved == {"all": {*found}, "head": head | statistics, "body": {*found} - head}[layers]


def test_who_is_tuned_with_whom_and_where_changes_nothing():
    """Client by client, together, in workers, as one stack; and the same again."""
    algorithm = FedAvgFT(tuning_epochs=[2])
    done = norm_round(algorithm)
    (alone,) = tuned(algorithm, done, [4])["tuned_2"]
    for settings in ({}, {"workers": 2}, {"engine": "vectorized"}):
        other = replace(done, ctx=norm_round(algorithm, **settings).ctx)
        found = tuned(algorithm, other, [3, 4, 1])["tuned_2"]
        assert gap({"params": found[1]}, {"params": alone}) < (1e-9 if settings else 1e-15)


def test_each_length_is_evaluated_beside_the_model_before():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL, cohort=2)
    algorithm = FedAvgFT(tuning_epochs=[1, 8])
    (done,) = rounds(algorithm, ctx, 1)
    found, table = evaluate(algorithm, done.after, torch.arange(6), ctx, world, "train")
    _, plain = evaluate(FedAvg(), done.after, torch.arange(6), ctx, world, "train")
    assert table["accuracy"].equals(plain["accuracy"])
    assert list(table) == ["round", "examples", "accuracy", "accuracy/tuned_1", "accuracy/tuned_8"]
    for name in ("", "/tuned_1", "/tuned_8"):
        assert found[f"client_accuracy_mean{name}"] == pytest.approx(table[f"accuracy{name}"].mean())
    assert found["client_accuracy_mean/tuned_8"] > found["client_accuracy_mean"]
    tuned_again = tuned(algorithm, done, list(range(6)))["tuned_8"]
    for client, params in enumerate(tuned_again):
        rows = world.of(client)
        right = ctx.model(params, world.prepare(rows), training=False).argmax(1) == world.y[rows]
        assert table["accuracy/tuned_8"][client] == float(right.double().mean())
    ctx.engine.close()


def test_a_run_evaluates_it(monkeypatch, tmp_path):
    words = "algorithm=fedavg_ft algorithm.tuning_epochs=[1] evaluate.clients=participants rounds=2 hardware.workers=2"
    assert run(monkeypatch, tmp_path, *words.split()) == 0
    assert {"client_accuracy_mean", "client_accuracy_mean/tuned_1", "client_accuracy_worst10/tuned_1"} <= {
        *metrics(tmp_path)
    }
    assert "accuracy/tuned_1" in (only_folder(tmp_path) / "clients.csv").read_text().splitlines()[0]


def test_resumes():
    assert_resumes(FedAvgFT(), "norm")


def test_settings_are_checked():
    for epochs in ([0], [1.5], [2, 2]):
        with pytest.raises(ConfigError, match=r"algorithm\.tuning_epochs="):
            FedAvgFT(tuning_epochs=epochs)
    for change in ({"tuning_layers": "first"}, {"tuning_lr": 0.0}):
        with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(change))}="):
            FedAvgFT(**change)
    world = make_world()
    with pytest.raises(ConfigError, match=r"^algorithm\.tuning_layers=body: this model has no such weights"):
        FedAvgFT(tuning_layers="body").check(make_context(make_model("linear", world), world))
    model = Model(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)).double())
    FedAvgFT().check(make_context(model, world))
    with pytest.raises(ConfigError, match=r"needs a model of an encoder and a head"):
        FedAvgFT(tuning_layers="head").check(make_context(model, world))
    assert build_algorithm(composed("algorithm=fedavg_ft")) == FedAvgFT()
