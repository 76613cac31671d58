"""What holds for every compression: bytes, zeros, mechanisms, resume, statistics apart, algorithms that refuse it."""

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
)

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedprox import FedProx
from fedexp.compression.majority_vote import MajorityVote
from fedexp.compression.qsgd import Qsgd
from fedexp.compression.random_k import RandomK
from fedexp.compression.sign import Sign
from fedexp.compression.top_k import TopK
from fedexp.models import Model
from fedexp.models.simple import simple_cnn

KEY = torch.tensor(77)
ALL = [
    TopK(share=0.1, places="packed"), TopK(share=0.3, places="bitmap"), RandomK(share=0.2),
    RandomK(share=0.2, error_feedback=False), Qsgd(), Qsgd(levels=1, scale="model"), Sign(),
    Sign(error_feedback=False, scale="model"), MajorityVote(),
]  # fmt: skip
EVERY = pytest.mark.parametrize("compression", ALL, ids=str)

# SimpleCNN: d = 62,006 parameters in T = 10 tensors, k = 620 of them. Bits of the table, padded to whole bytes.
SIZES = [
    (TopK(share=0.01), 39_680), (TopK(share=0.01, places="packed"), 29_760),
    (TopK(share=0.01, places="bitmap"), 81_846), (RandomK(share=0.01), 19_872),
    (Qsgd(levels=7, scale="model"), 248_056), (Qsgd(levels=1, scale="model"), 124_044),
    (Qsgd(levels=7), 248_344), (Qsgd(levels=1), 124_332), (Sign(scale="model"), 62_038), (Sign(), 62_326),
    (MajorityVote(), 62_006),
]  # fmt: skip


@pytest.mark.parametrize(("compression", "bits"), SIZES, ids=str)
def test_bytes_of_simple_cnn(compression, bits):
    torch.manual_seed(0)
    update = Model(simple_cnn((3, 32, 32), 10)).params()
    assert (len(update), sum(leaf.numel() for leaf in update.values())) == (10, 62_006)
    payload, _ = compression.encode(update, compression.init(update), KEY)
    assert tree.size_in_bytes(payload) == -(-bits // 8)
    read = compression.decode(payload, update)
    assert {name: leaf.shape for name, leaf in read.items()} == {name: leaf.shape for name, leaf in update.items()}


@EVERY
def test_an_update_of_zeros_is_read_as_zeros(compression):
    update = {"a": torch.zeros(3, 2), "b": torch.zeros(5)}
    read = compression.decode(compression.encode(update, compression.init(update), KEY)[0], update)
    zero = compression.step if isinstance(compression, MajorityVote) else 0.0  # whose sign(0) is +1
    assert all(bool((leaf == zero).all()) for leaf in read.values())


@EVERY
def test_the_bytes_of_a_round_are_those_of_payloads_and_statistics(compression):
    """196 trained entries in 6 tensors, 8 statistics, of 8 bytes each."""
    world = make_world()
    model = make_model("norm", world)
    update = {name: leaf for name, leaf in model.params().items() if name in model.weights}
    payload, _ = compression.encode(update, compression.init(update), KEY)
    for done in rounds(FedAvg(compression=compression), make_context(model, world, LOCAL), 2):
        assert done.bytes_up == 3 * (tree.size_in_bytes(payload) + 8 * 8)
        assert done.bytes_down == 3 * (196 + 8) * 8


@EVERY
def test_mechanisms_agree_and_two_workers_are_one(compression):
    algorithm = FedAvg(compression=compression)
    assert_mechanisms_agree(algorithm, "norm")
    assert gap(*(play(algorithm, "norm", workers=count) for count in (1, 2))) < 1e-12


@EVERY
def test_resumes(compression):
    assert_resumes(FedAvg(compression=compression), "norm", count=3)


@EVERY
def test_running_statistics_cross_as_they_are(compression):
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL)
    coarse, plain = (rounds(algorithm, ctx, 1)[0] for algorithm in (FedAvg(compression=compression), FedAvg()))
    for name in ctx.model.buffers:
        assert torch.equal(coarse.after["params"][name], plain.after["params"][name])
    assert gap(coarse.after, plain.after) > 1e-4


@pytest.mark.parametrize("compression", [each for each in ALL if getattr(each, "error_feedback", False)], ids=str)
def test_errors_are_what_did_not_cross_and_cross_later(compression):
    """Over all rounds, what the server has read and what the client still keeps are the sum of its updates."""
    draw = torch.Generator().manual_seed(1)
    updates = [{"a": torch.randn(4, 3, generator=draw), "b": torch.randn(7, generator=draw)} for _ in range(30)]
    memory, total = compression.init(updates[0]), tree.apply(torch.zeros_like, updates[0])
    for number, update in enumerate(updates):
        payload, memory = compression.encode(update, memory, KEY + number)
        total = tree.apply(torch.add, total, compression.decode(payload, update))
    whole = tree.apply(lambda *each: torch.stack(each).sum(0), *updates)
    torch.testing.assert_close(tree.apply(torch.add, total, memory["error"]), whole, rtol=0, atol=1e-4)
    assert tree.flat(memory["error"]).norm() < tree.flat(whole).norm() * 5  # it does not grow without end
    without = replace(compression, error_feedback=False)
    assert without.encode(updates[0], {}, KEY)[1] == {}


@EVERY
def test_it_combines_with_another_loss(compression):
    assert gap(play(FedProx(mu=0.5, compression=compression)), play(FedAvg(compression=compression))) > 1e-4
