"""FedDecorr: the term by hand in both scales, small batches, its neutral setting, bytes, mechanisms, resume."""

import pytest
import torch
from torch import nn
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
from fedexp.algorithms.feddecorr import FedDecorr
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.models import Model

ROWS = [(1.0, 1.0), (2.0, 2.0), (3.0, 4.0), (6.0, 5.0)]


def term(rows, weight=None, smallest_batch=1, **settings):
    features = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    weight = torch.ones(len(rows)).double() if weight is None else torch.tensor(weight).double()
    found = FedDecorr(smallest_batch=smallest_batch, **settings).correlation(features, weight)
    (grad,) = torch.autograd.grad(found, features)
    assert grad.isfinite().all()
    return float(found.detach())


def test_the_term_by_hand():
    """Correlation .92966968: 9/4 of its square, less the epsilon in the root; the paper's (2 + 2 corr^2) / 4."""
    assert term(ROWS) == pytest.approx(1.94464285, abs=5e-9)
    assert term(ROWS) < 9 / 4 * 0.92966968**2
    assert term(ROWS, scale="paper") == pytest.approx(0.93214285, abs=2e-8)
    assert term([(1.0, 1.0), (-1.0, -1.0)]) == pytest.approx(0.5, abs=5e-8)
    assert term([(1.0, 1.0), (-1.0, -1.0)], scale="paper") == pytest.approx(1.0, abs=5e-8)
    assert term([(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)]) < 1e-30


def test_padding_counts_for_nothing():
    padded = [*ROWS[:2], (7.0, -9.0), *ROWS[2:]]
    for scale in ("published", "paper"):
        assert term(padded, (1, 1, 0, 1, 1), scale=scale) == pytest.approx(term(ROWS, scale=scale), rel=1e-14)


def test_features_that_do_not_vary_and_single_examples():
    """They correlate with none: of three pairs of features one is left."""
    assert term([(*row, 3.0) for row in ROWS]) == pytest.approx(1.94464285 / 3, abs=5e-9)
    assert term(ROWS[:1]) == 0
    assert term([row[:1] for row in ROWS]) == 0


def test_batches_below_the_smallest_go_without():
    assert term(ROWS, smallest_batch=5) == 0
    assert term(ROWS, smallest_batch=4) > 1
    assert term([*ROWS, (7.0, 8.0)], (1, 1, 1, 1, 0), smallest_batch=5) == 0


def test_in_single_precision_features_of_relu():
    """Some never active: all numbers stay finite."""
    features = torch.randn(16, 40, generator=torch.Generator().manual_seed(0)).relu()
    features[:, ::3] = 0
    features.requires_grad_()
    FedDecorr().correlation(features, torch.ones(16)).backward()
    assert features.grad.isfinite().all() and features.grad.abs().max() > 0


def test_features_decorrelate():
    """Trained with a large beta, the features' mean squared correlation is a fraction of FedAvg's."""
    world = make_world([60])
    model, x = make_model("cnn", world), world.prepare(world.of(0))

    def correlation(algorithm):
        local = Local(epochs=10, batch_size=30, lr=0.05)
        (done,) = rounds(algorithm, make_context(model, world, local, cohort=1), 1)
        features = model.encode(done.after["params"], x, training=False)
        return float(FedDecorr().correlation(features, torch.ones(len(x)).double()))

    assert correlation(FedDecorr(beta=1.0)) < 0.7 * correlation(FedAvg())


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_beta_0_is_fedavg(kind):
    assert gap(play(FedDecorr(beta=0.0), kind), play(FedAvg(), kind)) < 1e-12
    assert gap(play(FedDecorr(), kind), play(FedAvg(), kind)) > 1e-4


def test_bytes_are_fedavg_s():
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(FedDecorr(), make_context(model, world), 1)
    assert only.bytes_up == only.bytes_down == 3 * tree.size_in_bytes(model.params())


@pytest.mark.parametrize("scale", ["published", "paper"])
def test_mechanisms_agree(scale):
    """Clients of fewer examples than a batch among them, and last batches that are padded in a stack."""
    assert_mechanisms_agree(FedDecorr(scale=scale, smallest_batch=3), "norm")
    assert gap(*(play(FedDecorr(scale=scale), "norm", workers=count) for count in (1, 2))) < 1e-12


def test_resumes():
    assert_resumes(FedDecorr(), "norm")


def test_what_cannot_work_is_refused():
    for change in ({"beta": -1.0}, {"scale": "both"}, {"smallest_batch": 0}):
        with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(change))}="):
            FedDecorr(**change)
    world = make_world()
    with pytest.raises(ConfigError, match=r"^model=.*encoder and a head"):
        FedDecorr().check(make_context(Model(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)).double()), world, LOCAL))
