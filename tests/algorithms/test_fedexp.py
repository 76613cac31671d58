"""FedExP: the step by hand, what is evaluated, its neutral setting, bytes, mechanisms, resume."""

from dataclasses import replace

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
    start,
)

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedexp import FedExP
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.privacy.none import NoPrivacy
from fedexp.round import personal_models
from fedexp.selection.uniform import Uniform

FAR = FedExP(epsilon=1e-6)  # with all six clients it steps further than FedAvg in every round but the first


class OnQuadratics(FedExP, Quadratic):
    """FedExP over quadratics."""


def step(first, second, weights=(1, 1), decayed=1.0, **settings):
    """eta_g of two updates, given as one tensor and as two."""
    updates = torch.tensor([first, second], dtype=torch.float64)
    weights, algorithm = torch.tensor(weights), FedExP(**settings)
    whole = algorithm.extrapolation({"w": updates}, weights, decayed)
    assert float(algorithm.extrapolation({"a": updates[:, :1], "b": updates[:, 1:]}, weights, decayed)) == float(whole)
    return float(whole)


def test_the_step_by_hand():
    """D (.2, .4), ||D||^2 .2, mean ||Delta||^2 1: 1 / (2 * .201); with K epsilon 1 / (2 * .202)."""
    pair = (1.0, 0.0), (-0.6, 0.8)
    assert step(*pair) == pytest.approx(2.48756219, abs=5e-9)
    assert step(*pair, epsilon_scale="published") == pytest.approx(2.47524752, abs=5e-9)
    assert step(*pair, epsilon_scale="published", decayed=0.5) == pytest.approx(1 / (2 * 0.2005), abs=5e-9)
    assert step(*pair, largest=2.0) == 2
    assert step((1.0, 0.0), (0.0, 1.0)) == 1  # 1 / (2 * .501) is below
    assert step((0.3, 0.4), (0.3, 0.4)) == 1  # agreement: a half
    assert step((0.0, 0.0), (0.0, 0.0), epsilon=0.0) == 1


def test_the_published_epsilon_shrinks_with_the_square_of_the_clients_learning_rate():
    """Updates -0.1 and 0.3 with rate 0.1 and 2 epsilon .002; then, with half the rate, a quarter of that."""
    local = Local(steps=1, batch_size=100, lr=0.1, lr_decay=0.5, momentum=0.0)
    algorithm = OnQuadratics(epsilon=0.001, epsilon_scale="published")
    first, second = rounds(algorithm, pair(local=local), 2)
    w = 1 + 0.1 * (0.05 / (2 * 0.012))
    assert weight(first.after["params"]) == pytest.approx(w)
    mine, other = -0.05 * w, 0.05 * (4 - w)
    mean, square = (mine + other) / 2, (mine**2 + other**2) / 2
    expected = square / (2 * (mean**2 + 0.0005))
    assert expected > 1
    assert float(second.after["extrapolation"]) == pytest.approx(expected)


def test_updates_count_by_their_weights():
    """By 1 and 3: D (-.2, .6), ||D||^2 .4, mean ||Delta||^2 1."""
    assert step((1.0, 0.0), (-0.6, 0.8), weights=(1, 3), epsilon=0.01) == pytest.approx(1 / (2 * 0.41))
    assert step((2.0, 0.0), (-0.6, 0.8), weights=(1, 3), epsilon=0.0) == pytest.approx(1.75 / (2 * 0.3625))


def test_rounds_by_hand():
    """From w = 1 to .9 and 1.3: Delta -.1, .3, D .1; (.01 + .09) / 2 / (2 * .011) = 2.27272727."""
    ctx = pair()
    first, second = rounds(OnQuadratics(), ctx, 2)
    further = 0.05 / (2 * (0.01 + 1e-3))
    w = 1 + further * 0.1
    assert weight(first.after["params"]) == pytest.approx(w)
    assert OnQuadratics().metrics(first.after, ctx) == pytest.approx({"extrapolation": further})
    deltas = [-0.1 * w, 0.1 * (4 - w)]
    d = sum(deltas) / 2
    again = max(1.0, sum(each**2 for each in deltas) / 2 / (2 * (d**2 + 1e-3)))
    assert weight(second.after["params"]) == pytest.approx(w + again * d)
    assert weight(second.after["previous"]) == weight(first.after["params"])


def test_clients_of_unequal_size():
    """1 and 3 examples: D .2, mean ||Delta||^2 (.01 + 3 * .09) / 4 = .07; alike: as above."""
    (done,) = rounds(OnQuadratics(), pair((1, 3)), 1)
    assert weight(done.after["params"]) == pytest.approx(1 + 0.2 * max(1, 0.07 / (2 * 0.041)))
    (alike,) = rounds(OnQuadratics(selection=Uniform(merge="equal")), pair((1, 3)), 1)
    assert weight(alike.after["params"]) == pytest.approx(1 + 0.1 * 0.05 / 0.022)


def test_the_mean_of_the_last_two_iterates_is_evaluated():
    """After round 1 of the initial model and the new one; a linear model's answers are linear in its weights."""
    world = make_world()
    model = make_model("linear", world)
    ctx = make_context(model, world, replace(LOCAL, epochs=1), cohort=2)
    x = world.prepare_test(slice(0, 7))
    before = model.params()
    for done in rounds(FedExP(epsilon=1e-6), ctx, 2):
        now = done.after["params"]
        old, new = (model(params, x, training=False) for params in (before, now))
        torch.testing.assert_close(FedExP().predict(done.after, model, x), (old + new) / 2, rtol=0, atol=1e-12)
        assert FedExP(evaluated="last").predict(done.after, model, x).equal(new)
        before = now


@pytest.mark.parametrize(("evaluated", "expected"), [("mean2", 1.5), ("last", 2.0)])
def test_clients_use_the_model_that_is_evaluated_and_train_from_the_last(evaluated, expected):
    """Iterates 1 and 2."""
    algorithm, ctx = OnQuadratics(evaluated=evaluated), pair()
    state, ids = start(algorithm, ctx), torch.arange(2)
    last = {name: 2 * leaf for name, leaf in state["params"].items()}
    state = {**state, "params": last, "previous": state["params"]}
    assert list(map(weight, personal_models(algorithm, state, ids, ctx))) == [expected] * 2
    assert algorithm.download(state, ids, ctx)["model"]["head.weight"].flatten().tolist() == [2.0] * 2


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_without_extrapolation_it_is_fedavg(kind):
    """Bound to 1; also by a large epsilon, and with a single client a round."""
    assert gap(play(FedExP(largest=1.0), kind), play(FedAvg(), kind)) == 0
    assert gap(play(FedExP(epsilon=1e9), kind), play(FedAvg(), kind)) == 0
    assert gap(play(FedExP(), kind, cohort=1), play(FedAvg(), kind, cohort=1)) == 0
    assert gap(play(FAR, kind, cohort=6), play(FedAvg(), kind, cohort=6)) > 1e-3


def test_running_statistics_take_the_plain_mean_and_no_part_in_the_norms():
    world = make_world()
    model = make_model("norm", world)
    for name in model.buffers:  # so large that they would decide every norm
        model.net.get_buffer(name).mul_(1e3).add_(1e3)
    ctx = make_context(model, world, Local(epochs=1, batch_size=8, lr=0.1), cohort=6)
    (done,), (plain,) = (rounds(each, ctx, 1) for each in (FAR, FedAvg()))
    further = float(done.after["extrapolation"])
    assert further > 1.01
    for name, old in model.params().items():
        moved, plainly = (each.after["params"][name] - old for each in (done, plain))
        torch.testing.assert_close(moved, (further if name in model.weights else 1) * plainly, rtol=0, atol=1e-12)


def test_bytes_are_fedavg_s():
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(FedExP(), make_context(model, world), 1)
    assert only.bytes_up == only.bytes_down == 3 * tree.size_in_bytes(model.params())


def test_mechanisms_agree_and_it_resumes():
    assert_mechanisms_agree(FAR, "norm", cohort=6)
    assert gap(*(play(FAR, "norm", workers=count, cohort=6) for count in (1, 2))) < 1e-12
    assert_resumes(FAR, "norm", cohort=6)


def test_privacy_is_refused():
    class Private(NoPrivacy):
        """Any mechanism."""

    world = make_world()
    with pytest.raises(ConfigError, match=r"^privacy=Private: .*norms"):
        FedExP(privacy=Private()).check(make_context(make_model("linear", world), world))
