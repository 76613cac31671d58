"""Algorithms with selections, server optimizers and compressions of other papers: they run, agree, count and resume."""

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

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedprox import FedProx
from fedexp.algorithms.scaffold import Scaffold
from fedexp.compression.top_k import TopK
from fedexp.engine import client_rows
from fedexp.selection.clusamp import CluSamp
from fedexp.server_optimizer.adaptive import Adam

PROX = FedProx(mu=0.5, selection=CluSamp())
SPARSE = Scaffold(server_optimizer=Adam(lr=0.01, tau=0.1), compression=TopK(share=0.2))
NEUTRAL = {
    "server_optimizer": Adam(lr=1.0, beta1=0.0, beta2=1.0, v_init=0.0, tau=1.0),
    "compression": TopK(share=1.0),
}


@pytest.mark.parametrize("algorithm", [PROX, SPARSE], ids=["fedprox+clusamp", "scaffold+adam+top_k"])
class TestCombinations:
    @pytest.mark.parametrize("kind", ["cnn", "norm"])
    def test_mechanisms_agree(self, algorithm, kind):
        assert_mechanisms_agree(algorithm, kind, count=4)

    def test_two_workers_are_one(self, algorithm):
        assert gap(*(play(algorithm, "norm", workers=count) for count in (1, 2))) < 1e-12

    def test_resumes(self, algorithm):
        assert_resumes(algorithm, "norm")


def context(**settings):
    world = make_world()
    return make_context(make_model("norm", world), world, LOCAL, **settings)


def test_each_part_has_its_effect():
    """Four algorithms, four results: neither the term nor the selection goes without saying."""
    found = [play(algorithm) for algorithm in (PROX, FedProx(mu=0.5), FedAvg(selection=CluSamp()), FedAvg())]
    assert all(gap(one, other) > 1e-4 for i, one in enumerate(found) for other in found[:i])


def test_clusamp_sees_fedprox_s_updates():
    (done,) = rounds(PROX, context(), 1)
    kept = client_rows.take(done.after["selection"]["updates"], done.ids)
    for name, update in kept.items():
        assert torch.equal(update, done.uploads["update"][name])


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_neutral_parts_leave_scaffold_as_it_is(kind):
    """A client's error and its control are kept side by side, and neither touches the other."""
    assert gap(play(Scaffold(**NEUTRAL), kind), play(Scaffold(), kind)) == 0


def test_controls_cross_whole_and_updates_sparse():
    """196 trained entries and 8 statistics: a fifth of the former as values and places, all of their controls."""
    for done in rounds(SPARSE, context(), 2):
        assert done.bytes_up == 3 * (39 * (4 + 8) + 8 * 8 + 196 * 8)
        assert done.bytes_down == 3 * (196 + 8 + 196) * 8


def test_a_client_drawn_twice_has_one_control():
    """The server's control stays the mean of the clients', as SCAFFOLD needs it to."""
    world = make_world([10] * 6)
    ctx = make_context(make_model("norm", world), world, LOCAL, cohort=4)
    done = rounds(Scaffold(selection=CluSamp()), ctx, 4)
    assert any(len(each.ids.unique()) < 4 for each in done)
    own = client_rows.take(done[-1].after["memory"], torch.arange(6))["own"]["control"]
    for name, control in done[-1].after["control"].items():
        torch.testing.assert_close(control, own[name].mean(0), rtol=0, atol=1e-13)
        assert control.abs().max() > 1e-5
