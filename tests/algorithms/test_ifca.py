"""IFCA: who chooses which model, its neutral setting, its bytes."""

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
    rounds,
    start,
)

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.ifca import Ifca
from fedexp.compression.top_k import TopK
from fedexp.round import personal_models


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_vectorized_equals_one_by_one(kind):
    assert_mechanisms_agree(Ifca(clusters=3), kind)
    assert_mechanisms_agree(Ifca(clusters=3, compression=TopK(share=0.2)), kind)


def test_workers_equal_one_process():
    alone, pool = (play(Ifca(clusters=3), workers=workers) for workers in (1, 2))
    assert gap(alone, pool) == 0
    assert alone["assigned"].tolist() == pool["assigned"].tolist()


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_resumes(kind):
    assert_resumes(Ifca(clusters=3), kind)


def test_one_cluster_is_fedavg():
    ifca = play(Ifca(clusters=1), "norm")["params"]
    fedavg = play(FedAvg(), "norm")["params"]
    for name, leaf in fedavg.items():
        torch.testing.assert_close(ifca[name][0], leaf, rtol=0, atol=1e-12)


def answering(labels, cohort):
    """(an IFCA of three linear models, of which number c always answers class c; the context; the first State), with
    clients of 4 examples each."""
    world = make_world([4] * (len(labels) // 4))
    world.y[world.rows] = torch.tensor(labels)
    ctx, algorithm = make_context(make_model("linear", world), world, LOCAL, cohort), Ifca(clusters=3)
    biases = torch.eye(4, dtype=torch.float64)[:3]
    models = {"head.weight": torch.zeros(3, 4, 64, dtype=torch.float64), "head.bias": biases}
    return algorithm, ctx, {**start(algorithm, ctx), "params": models}


def test_clients_take_the_model_with_the_smallest_loss():
    """Each client holds mostly one class: 1, 0, 2."""
    algorithm, ctx, state = answering([1, 1, 1, 0, 0, 0, 2, 0, 2, 1, 2, 2], cohort=3)
    (only,) = rounds(algorithm, ctx, 1, state)
    own = torch.tensor([1, 0, 2])
    assert only.after["assigned"].tolist() == own.tolist()
    assert only.uploads["choice"].tolist() == own[only.ids].tolist()
    biases = state["params"]["head.bias"]
    begun = algorithm.starts(only.before, only.ids, only.uploads, ctx)
    assert torch.equal(begun["head.bias"], biases[own[only.ids]])
    moved = only.after["params"]["head.bias"]  # each model was trained by one client
    assert torch.equal(only.models["head.bias"], moved[own[only.ids]])
    assert (moved != biases).any(1).all()
    used = personal_models(algorithm, state, torch.arange(3), ctx)
    assert [params["head.bias"].tolist() for params in used] == biases[own].tolist()


def test_measures_ask_every_client_also_those_never_drawn():
    """Each client holds one class, which one model always answers: asked anew, all of them choose that model."""
    algorithm, ctx, state = answering([label for label in (1, 0, 2, 2) for _ in range(4)], cohort=1)
    assert algorithm.metrics(state, ctx) == {"assigned_accuracy": 1.0}
    assert algorithm.summary(state, ctx) == {"clients_by_cluster": [1, 1, 2]}
    assert ctx.engine.drain() == (0, 0)  # a measure sends nothing
    assert state["assigned"].tolist() == [0] * 4  # nor does it change what follows


def test_identical_starts_all_go_to_the_first_model():
    """The published code's first round: ties everywhere."""
    state = play(Ifca(clusters=3, identical_start=True), count=1, cohort=6)
    assert state["assigned"].tolist() == [0] * 6
    assert torch.equal(state["params"]["head.weight"][1], state["params"]["head.weight"][2])
    state = play(Ifca(clusters=3), count=1, cohort=6)
    assert len(set(state["assigned"].tolist())) > 1


def test_bytes_are_all_models_down_and_one_up_with_the_choice():
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(Ifca(clusters=4), make_context(model, world, LOCAL, cohort=2), 1)
    size = tree.size_in_bytes(model.params())
    assert (only.bytes_up, only.bytes_down) == (2 * (size + 8), 2 * 4 * size)
