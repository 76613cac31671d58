"""Local training alone: rounds by hand, nothing is exchanged, neutral setting, mechanisms, resume, what is refused."""

import pytest
import torch
from quadratics import Quadratic, pair, weight
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
from fedexp.algorithms.local_only import LocalOnly
from fedexp.compression.top_k import TopK
from fedexp.engine import client_rows
from fedexp.errors import ConfigError
from fedexp.measure.clients import evaluate
from fedexp.measure.divergence import divergence
from fedexp.round import personal_models
from fedexp.selection.clusamp import CluSamp
from fedexp.selection.poisson import Poisson
from fedexp.selection.uniform import Uniform
from fedexp.server_optimizer.sgd import Sgd


class OnQuadratics(LocalOnly, Quadratic):
    """Local training over quadratics."""


def test_rounds_by_hand():
    found = []
    for done in rounds(OnQuadratics(), pair(), 2):
        models = personal_models(OnQuadratics(), done.after, torch.tensor([0, 1]), done.ctx)
        found.append(list(map(weight, models)))
        assert weight(done.after["params"]) == 1
    assert found == [pytest.approx([0.9, 1.3]), pytest.approx([0.81, 1.57])]


def test_a_single_client_trains_as_under_fedavg():
    world = make_world([30])
    ctx = make_context(make_model("norm", world), world, LOCAL, cohort=1)
    mine = rounds(LocalOnly(), ctx, 3)[-1].after
    (params,) = personal_models(LocalOnly(), mine, torch.tensor([0]), ctx)
    assert gap({"params": params}, rounds(FedAvg(), ctx, 3)[-1].after) < 1e-12


def test_nothing_is_exchanged():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL)
    for done in rounds(LocalOnly(), ctx, 2):
        assert (done.bytes_up, done.bytes_down) == (0, 0)
        assert divergence(done) == {}
        assert gap(done.after, {"params": ctx.model.params()}) == 0


def test_who_never_took_part_has_the_initial_model_and_is_told():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL, cohort=2)
    (only,) = rounds(LocalOnly(), ctx, 1)
    before = {"params": ctx.model.params()}
    for client, params in enumerate(personal_models(LocalOnly(), only.after, torch.arange(6), ctx)):
        assert (gap({"params": params}, before) == 0) == (client not in only.ids.tolist())
    found, _ = evaluate(LocalOnly(), only.after, torch.arange(6), ctx, world, "train")
    assert found["client_coverage"] == pytest.approx(2 / 6)
    assert (
        "client_coverage" not in evaluate(FedAvg(), rounds(FedAvg(), ctx, 1)[0].after, only.ids, ctx, world, "train")[0]
    )


def test_mechanisms_agree():
    """On the clients' own models: there is no other."""
    found = [play(LocalOnly(), "norm", **how) for how in ({}, {"workers": 2}, {"mechanism": "vectorized"})]
    first, *others = (client_rows.take(each["memory"], torch.arange(6))["own"]["private"] for each in found)
    for other, tolerance in zip(others, (1e-12, 1e-9)):
        assert gap({"params": first}, {"params": other}) < tolerance
    assert_mechanisms_agree(LocalOnly(), "norm")


def test_resumes():
    assert_resumes(LocalOnly(), "norm")


@pytest.mark.parametrize(
    "part",
    [{"server_optimizer": Sgd(lr=0.5)}, {"compression": TopK()}, {"selection": CluSamp()},
     {"selection": Uniform(merge="equal")}],
    ids=str,
)  # fmt: skip
def test_parts_that_would_have_nothing_to_do_are_refused(part):
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL, cohort=2)
    LocalOnly(selection=Uniform()).check(ctx)
    with pytest.raises(ConfigError, match=rf"^{next(iter(part))}(\.merge)?="):
        LocalOnly(**part).check(ctx)


def test_clients_may_be_drawn_in_any_way_that_depends_on_chance_alone():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL, cohort=2)
    LocalOnly(selection=Poisson()).check(ctx)
    done = rounds(LocalOnly(selection=Poisson()), ctx, 4)
    assert {len(each.ids) for each in done} != {2}
    with pytest.raises(ConfigError, match=r"^selection\.merge=equal: has nothing to weigh"):
        LocalOnly(selection=Uniform(merge="equal")).check(ctx)
