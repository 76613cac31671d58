"""FedDyn: a problem with a known optimum, one round by hand, bytes, mechanisms, resume."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from worlds import assert_mechanisms_agree, assert_resumes, gap, make_context, make_model, make_world, play, rounds

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.feddyn import FedDyn
from fedexp.compression.top_k import TopK
from fedexp.data import Transform
from fedexp.engine import Local, client_rows
from fedexp.errors import ConfigError
from fedexp.models import Classifier, Model
from fedexp.selection.uniform import Uniform
from fedexp.server_optimizer.momentum import Momentum
from fedexp.server_optimizer.sgd import Sgd
from fedexp.world import World

# Client k minimises c_k / 2 (w - t_k)^2. The sum's optimum is sum(c t) / sum(c), not the mean of the t.
CURVATURES, TARGETS = (4.0, 0.5, 1.0, 2.5), (1.0, -3.0, 5.0, 0.5)
OPTIMUM = sum(c * t for c, t in zip(CURVATURES, TARGETS)) / sum(CURVATURES)


@dataclass(frozen=True, kw_only=True)
class Quadratic(FedAvg):
    """Its one example tells a client its curvature and its target; w is the head's bias."""

    def loss(self, model, params, batch, client):
        curvature, target = batch.x.flatten(1).unbind(1)
        return batch.mean(curvature / 2 * (params["head.bias"] - target) ** 2)


@dataclass(frozen=True, kw_only=True)
class QuadraticDyn(FedDyn, Quadratic):
    """FedDyn over the same losses."""


def quadratic(clients, local, w=0.0):
    """A context in which two of so many clients take part in a round, from `w`."""
    x = torch.tensor(list(zip(CURVATURES, TARGETS)), dtype=torch.float64)[:clients].view(clients, 1, 1, 2)
    y = torch.zeros(clients, dtype=torch.int64)
    sizes = torch.ones(clients, dtype=torch.int64)
    world = World(x, y, x, y, torch.arange(clients), sizes, 1, Transform(), torch.float64)
    head = nn.Linear(2, 1).double()
    nn.init.constant_(head.bias, w)
    return make_context(Model(Classifier(nn.Flatten(), head)), world, local, cohort=2)


def solve(algorithm, clients, count, local):
    return float(rounds(algorithm, quadratic(clients, local), count)[-1].after["params"]["head.bias"])


MANY_STEPS = Local(steps=40, batch_size=1, lr=0.2, momentum=0.0)
FEW_STEPS = Local(steps=12, batch_size=1, lr=0.2, momentum=0.0)  # enough for the local optimum at alpha = 2


def test_two_clients_reach_the_optimum_that_fedavg_with_many_local_steps_misses():
    optimum = (4.0 * 1.0 + 0.5 * -3.0) / 4.5
    assert solve(QuadraticDyn(alpha=0.5), 2, 30, MANY_STEPS) == pytest.approx(optimum, abs=1e-3)
    avg = solve(Quadratic(), 2, 30, MANY_STEPS)
    assert avg == pytest.approx((1.0 - 3.0) / 2, abs=0.05), "FedAvg ends at the mean of the local optima"


def test_partial_participation_reaches_the_optimum_and_the_published_server_state_does_not():
    dyn = solve(QuadraticDyn(alpha=2.0), 4, 120, FEW_STEPS)
    published = solve(QuadraticDyn(alpha=2.0, server_state="published"), 4, 120, FEW_STEPS)
    assert dyn == pytest.approx(OPTIMUM, abs=1e-3)
    assert not abs(published - OPTIMUM) < 0.1


def gradients(state):
    own = client_rows.take(state["memory"], torch.tensor([0, 1]))["own"]
    return own["gradient"]["head.bias"].flatten().tolist()


def test_a_round_by_hand():
    """Two clients, one step of 0.1 from w = 2 with alpha 0.5, twice."""
    ctx = quadratic(2, Local(steps=1, batch_size=1, lr=0.1, momentum=0.0), w=2.0)
    (first,) = rounds(QuadraticDyn(alpha=0.5), ctx, 1)
    # gradients at 2: 4 (2 - 1) = 4 and 0.5 (2 + 3) = 2.5; w_k = 1.6 and 1.75; they moved by -0.4 and -0.25
    # g_k = 0.2, 0.125; h = -0.5 / 2 * -0.65 = 0.1625; w = 1.675 - 0.325 = 1.35
    assert gradients(first.after) == pytest.approx([0.2, 0.125])
    assert float(first.after["h"]["head.bias"]) == pytest.approx(0.1625)
    assert float(first.after["params"]["head.bias"]) == pytest.approx(1.35)
    (second,) = rounds(QuadraticDyn(alpha=0.5), ctx, 1, first.after)
    # gradients at 1.35 with -g_k: 1.4 - 0.2 = 1.2 and 2.175 - 0.125 = 2.05; moved -0.12, -0.205
    # h = 0.1625 + 0.25 * 0.325 = 0.24375; w = 1.35 - 0.1625 - 0.4875 = 0.7
    assert gradients(second.after) == pytest.approx([0.26, 0.2275])
    assert float(second.after["params"]["head.bias"]) == pytest.approx(0.7)


def test_two_steps_by_hand():
    """The regulariser's gradient, alpha (w - 2), is 0 at the first step alone."""
    ctx = quadratic(2, Local(steps=2, batch_size=1, lr=0.1, momentum=0.0), w=2.0)
    (only,) = rounds(QuadraticDyn(alpha=0.5), ctx, 1)
    # to 1.6 and 1.75; then by gradients 4 * 0.6 - 0.5 * 0.4 = 2.2 and 0.5 * 4.75 - 0.5 * 0.25 = 2.25 to 1.38 and 1.525
    assert gradients(only.after) == pytest.approx([0.31, 0.2375])
    assert float(only.after["params"]["head.bias"]) == pytest.approx(1.4525 - 0.27375 / 0.5)


def test_the_published_server_state_by_hand():
    """Two of four clients, one step of 0.1 from w = 2: h takes half of their mean for the mean of all."""
    ctx = quadratic(4, Local(steps=1, batch_size=1, lr=0.1, momentum=0.0), w=2.0)
    (only,) = rounds(QuadraticDyn(alpha=0.5, server_state="published"), ctx, 1)
    ends = [2.0 - 0.1 * CURVATURES[k] * (2.0 - TARGETS[k]) for k in only.ids.tolist()]
    h = -0.5 * (sum(ends) / 4 - 2.0)
    assert float(only.after["h"]["head.bias"]) == pytest.approx(h)
    assert float(only.after["params"]["head.bias"]) == pytest.approx(sum(ends) / 2 - h / 0.5)


def test_the_first_round_with_a_vanishing_regulariser_is_fedavg_stepping_further():
    """h / alpha does not vanish with alpha: w = mean - h / alpha goes 1 + K / N times FedAvg's way."""
    local = Local(epochs=1, batch_size=8, lr=0.05, momentum=0.9)
    world = make_world([16, 16, 16, 16])
    model = make_model("norm", world)
    w0 = model.params()
    dyn, avg = (
        rounds(algorithm, make_context(model, world, local, cohort=2), 1)[-1].after["params"]
        for algorithm in (FedDyn(alpha=1e-12), FedAvg())
    )
    for name, value in avg.items():
        factor = 1.5 if name in model.weights else 1.0
        torch.testing.assert_close(dyn[name] - w0[name], factor * (value - w0[name]), rtol=1e-8, atol=1e-12)


def test_models_and_statistics_are_averaged_uniformly():
    """Of 5 and 40 examples; statistics have no h."""
    world = make_world([5, 40])
    model = make_model("norm", world)
    (only,) = rounds(FedDyn(alpha=0.5), make_context(model, world, Local(epochs=1, batch_size=8), cohort=2), 1)
    assert set(only.after["h"]) == set(model.weights)
    for name, value in only.after["params"].items():
        mean = only.models[name].mean(0)
        expected = mean - only.after["h"][name] / 0.5 if name in model.weights else mean
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


def test_sends_one_model_each_way():
    world = make_world(dtype=torch.float32)
    model = make_model("norm", world, torch.float32)
    (only,) = rounds(FedDyn(), make_context(model, world, Local(epochs=1, batch_size=8), precision="float32"), 1)
    size = 4 * sum(value.numel() for value in model.params().values())
    assert (only.bytes_up, only.bytes_down) == (3 * size, 3 * size)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("workers", [1, 2])
def test_mechanisms_agree(kind, workers):
    assert_mechanisms_agree(FedDyn(alpha=0.5), kind, workers=workers)


def test_differs_from_fedavg():
    assert gap(play(FedDyn()), play(FedAvg())) > 1e-3


def test_compression_that_loses_nothing_changes_nothing():
    """The server's h is made of the updates as it decodes them."""
    assert gap(play(FedDyn(compression=TopK(share=1.0)), "norm"), play(FedDyn(), "norm")) < 1e-12


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"algorithm.alpha=0"):
        FedDyn(alpha=0)
    with pytest.raises(ConfigError, match=r"algorithm.server_state=other"):
        FedDyn(server_state="other")


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [(Sgd(lr=0.5), r"^server_optimizer\.lr=0\.5: .*use 1$"),
     (Momentum(), r"^server_optimizer=Momentum: .*use server_optimizer=sgd$")],
    ids=["rate", "optimizer"],
)  # fmt: skip
def test_another_server_step_is_refused(optimizer, told):
    world = make_world()
    ctx = make_context(make_model("linear", world), world)
    with pytest.raises(ConfigError, match=told):
        FedDyn(server_optimizer=optimizer).check(ctx)


def test_a_selection_with_weights_of_its_own_is_refused():
    @dataclass(frozen=True)
    class Weighing(Uniform):
        def weights(self, ids, ctx):
            return torch.ones(len(ids))

    world = make_world()
    ctx = make_context(make_model("linear", world), world)
    FedDyn().check(ctx)
    with pytest.raises(ConfigError, match=r"^selection=Weighing: .*in its own way, and so does FedDyn"):
        FedDyn(selection=Weighing()).check(ctx)


def test_resumes():
    assert_resumes(FedDyn(), "norm")
