"""Majority vote: by hand, ties, one client one vote, what refuses it."""

import pytest
import torch
from worlds import LOCAL, make_context, make_model, make_world, rounds

from fedexp.algorithms.cadis import Cadis
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedgen import FedGen
from fedexp.algorithms.fednova import FedNova
from fedexp.algorithms.ifca import Ifca
from fedexp.algorithms.scaffold import Scaffold
from fedexp.compression.majority_vote import MajorityVote
from fedexp.errors import ConfigError
from fedexp.server_optimizer.sgd import Sgd

KEY = torch.tensor(0)


def votes(*updates, step=1.0, weights=None):
    """What the server makes of these clients' updates."""
    compression = MajorityVote(step=step)
    stack = {"x": torch.tensor(updates)}
    like = {"x": stack["x"][0]}
    payloads = torch.vmap(lambda x: compression.encode({"x": x}, {}, KEY)[0])(stack["x"])
    read = torch.vmap(lambda payload: compression.decode(payload, like))(payloads)
    weights = torch.ones(len(updates)) if weights is None else weights
    return compression.merge({**read, "mean": torch.arange(float(len(updates)))}, weights, ["x"])


def test_by_hand():
    """(+ - + -), (+ + - -), (- - + -) give (+ - + -), in steps."""
    found = votes([3.0, -1.0, 0.1, -9.0], [1.0, 5.0, -1.0, -1.0], [-8.0, -1.0, 1.0, -1.0], step=0.25)
    assert found["x"].tolist() == [0.25, -0.25, 0.25, -0.25]


def test_ties_and_zeros_are_plus():
    assert votes([1.0, 0.0], [-1.0, 0.0])["x"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("count", [6, 10, 50])
def test_a_tie_of_many_is_plus_whatever_the_order_and_the_step(count):
    """Half of the votes are +1, in a random order for each of 200 entries."""
    gen = torch.Generator().manual_seed(0)
    half = (torch.rand(200, count, generator=gen).argsort(1) < count // 2).T
    found = votes(*torch.where(half, 1.0, -1.0).tolist(), step=1e-3)
    assert found["x"].tolist() == torch.full((200,), 1e-3).tolist()


def test_one_client_one_vote_and_statistics_by_weight():
    found = votes([-1.0], [1.0], [1.0], weights=torch.tensor([98, 1, 1]))
    assert found["x"].tolist() == [1.0]
    assert float(found["mean"]) == pytest.approx(0.03)


def test_a_round_moves_every_trained_entry_by_one_step():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL)
    algorithm = FedAvg(compression=MajorityVote(step=0.01), server_optimizer=Sgd(lr=0.5))
    (done,) = rounds(algorithm, ctx, 1)
    signs = {name: rounds(FedAvg(), ctx, 1)[0].uploads["update"][name] >= 0 for name in ctx.weights}
    for name in ctx.weights:
        up = 2 * signs[name].sum(0) >= 3
        moved = done.after["params"][name] - done.before["params"][name]
        torch.testing.assert_close(moved, 0.005 * torch.where(up, 1.0, -1.0).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [Scaffold, FedNova, Cadis, Ifca, lambda **parts: FedGen(task_batch=8, **parts)])
def test_algorithms_that_merge_otherwise_refuse_it(kind):
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL)
    with pytest.raises(ConfigError, match=r"compression=MajorityVote: replaces the mean of updates, and so does"):
        kind(compression=MajorityVote()).check(ctx)
