"""FeSEM: its groups, its proximal term by hand, its neutral setting, its bytes."""

from dataclasses import replace

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
from fedexp.algorithms.fedprox import FedProx
from fedexp.algorithms.fesem import FeSEM
from fedexp.engine import client_rows
from fedexp.errors import ConfigError


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_vectorized_equals_one_by_one(kind):
    assert_mechanisms_agree(FeSEM(clusters=3), kind)


def test_workers_equal_one_process():
    alone, pool = (play(FeSEM(clusters=3), workers=workers, count=4) for workers in (1, 2))
    assert gap(alone, pool) == 0


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_resumes(kind):
    assert_resumes(FeSEM(clusters=3), kind)


@pytest.mark.parametrize(("mu", "other"), [(0.0, FedAvg()), (0.5, FedProx(mu=0.5))])
def test_one_cluster_is_fedavg_or_fedprox(mu, other):
    fesem = play(FeSEM(clusters=1, mu=mu), "norm")
    one = {"params": tree.take(fesem["params"], 0)}
    assert gap(one, play(other, "norm")) < 1e-12


def test_first_groups_are_random_and_equal():
    world = make_world()
    model = make_model("linear", world)
    algorithm, drawn = FeSEM(clusters=3), []
    for seed in range(4):
        ctx = make_context(model, world, LOCAL, cohort=6, seed=seed)
        first = start(algorithm, ctx)["assigned"]
        assert torch.bincount(first).tolist() == [2, 2, 2]
        (only,) = rounds(algorithm, ctx, 1)
        assert only.after["assigned"].tolist() == first.tolist()  # which is where the first round trains them
        drawn.append(tuple(first.tolist()))
    assert len(set(drawn)) > 1


def constant(model, *values):
    """Models of which each has one value everywhere."""
    return {
        name: torch.stack([torch.full_like(leaf, value) for value in values]) for name, leaf in model.params().items()
    }


def test_later_each_belongs_to_the_nearest_center():
    """Client 0's last weights are nearest to center 1, client 1's to center 0; client 2 never took part."""
    world = make_world([4, 4, 4])
    model = make_model("linear", world)
    algorithm, ctx = FeSEM(clusters=2), make_context(model, world, LOCAL)
    state = {**start(algorithm, ctx), "params": constant(model, 0.0, 1.0), "assigned": torch.tensor([0, 1, 0])}
    state["last"] = client_rows.put(state["last"], torch.tensor([0, 1]), constant(model, 0.8, 0.4))
    received = algorithm.download(state, torch.tensor([2, 1, 0]), ctx)["model"]
    assert received["head.bias"][:, 0].tolist() == [0.0, 0.0, 1.0]
    (only,) = rounds(algorithm, make_context(model, world, LOCAL, cohort=1, seed=2), 1, state)
    assert only.ids.tolist() == [1]
    assert only.after["assigned"].tolist() == [0, 0, 0]  # who takes part
    assert algorithm.summary(state, ctx) == {"clients_by_cluster": [2, 1]}  # measures ask everyone
    assert state["assigned"].tolist() == [0, 1, 0]


def test_the_server_keeps_the_weights_that_clients_returned():
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(FeSEM(clusters=2), make_context(model, world, LOCAL, cohort=2), 1)
    size = tree.size_in_bytes(model.params())
    assert (only.bytes_up, only.bytes_down) == (2 * size, 2 * size)
    last = only.after["last"]
    assert torch.equal(client_rows.held(last, torch.arange(6)).nonzero().flatten(), only.ids.sort()[0])
    kept = client_rows.take(last, only.ids)
    assert set(kept) == set(model.weights)
    assert torch.equal(kept["head.weight"], only.models["head.weight"])


def test_a_round_is_measured_from_the_models_that_it_started_from():
    """Large steps lead clients nearer to other centers, by which they are assigned in the next round, not in this one:
    what the server keeps of them has changed when the round is measured."""
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, replace(LOCAL, lr=1.0), cohort=6)
    state, moved = None, 0
    for _ in range(4):
        (done,) = rounds(FeSEM(clusters=3), ctx, 1, state)
        state = done.after
        moved += int((done.before["assigned"] != state["assigned"]).sum())
        kept = client_rows.take(state["last"], done.ids)
        for name, leaf in kept.items():
            assert torch.equal(done.models[name], leaf)
    assert moved > 0


def test_a_negative_mu_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.mu=-0\.1"):
        FeSEM(mu=-0.1)
