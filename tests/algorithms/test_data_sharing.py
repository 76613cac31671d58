"""Data sharing: who receives what, what it does to the skew, what it costs, and what training sees."""

from dataclasses import replace

import pytest
import torch
from worlds import (
    LOCAL,
    assert_mechanisms_agree,
    assert_resumes,
    by_hand,
    gap,
    make_context,
    make_model,
    make_world,
    play,
    run_stages,
)

from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.data_sharing import DataSharing
from fedexp.algorithms.fedavg import FedAvg
from fedexp.data import Transform
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.measure.skew import emd, mean_emd
from fedexp.world import Noise, World


def sharing(**settings):
    return DataSharing(**{"pretraining_epochs": 0, "holdout": 0.2, "beta": 0.2, "alpha": 0.5, **settings})


def one_class_context(classes=10, each=500, seed=0):
    """As many clients as classes, client c holding all of class c."""
    y = torch.arange(classes).repeat_interleave(each)
    x = torch.zeros(len(y), 1, 2, 2, dtype=torch.uint8)
    sizes = torch.full((classes,), each)
    world = World(x, y, x[:1], y[:1], torch.arange(len(y)), sizes, classes, Transform())
    return make_context(make_model("linear"), world, LOCAL, seed=seed)


def worlds(ctx, **settings):
    """(the world of the warm-up, the world of the rounds)."""
    warm_up, training = sharing(**{"pretraining_epochs": 1, **settings}).stages(ctx)
    return warm_up.context.world, training.context.world


@pytest.mark.parametrize(
    ("beta", "alpha", "expected"),
    [(0.1, 1.0, 0.9), (0.1, 0.5, 1.2), (0.025, 1.0, 1.44), (0.25, 1.0, 0.9 * 8 / 14), (0.1, 0.0, 1.8)],
)
def test_emd_after_sharing(beta, alpha, expected):
    """A tenth of CIFAR-10's protocol: 10 x 400 one-class examples; 1.8 * 400 / (400 + alpha |G|)."""
    _, world = worlds(one_class_context(), beta=beta, alpha=alpha)
    received = round(alpha * beta * 4000)
    assert world.sizes.tolist() == [400 + received] * 10
    assert 1.8 * 400 / (400 + received) == pytest.approx(expected)
    if alpha in (0, 1):  # otherwise a random part of G is nearly, not exactly, uniform
        assert emd(world.label_counts).tolist() == pytest.approx([expected] * 10)
    assert mean_emd(world.label_counts) == pytest.approx(expected, abs=0.05)


def test_held_out_shared_and_own_examples():
    """H and the clients' own data are apart; G is uniform; each client has its own half of G, each part once."""
    ctx = one_class_context()
    server, world = worlds(ctx, beta=0.1, alpha=0.5)
    shared = set(server.rows.tolist())
    assert len(shared) == 400
    assert torch.bincount(world.y[server.rows]).tolist() == [40] * 10
    portions = []
    for client in range(10):
        rows = world.of(client).tolist()
        own, portion = rows[:400], rows[400:]
        assert set(world.y[own].tolist()) == {client}
        assert not shared & set(own)
        assert len(set(portion)) == 200
        assert set(portion) <= shared
        portions.append(frozenset(portion))
    assert len(set(portions)) == 10
    assert torch.equal(world.rows, worlds(ctx, beta=0.1, alpha=0.5)[1].rows)
    assert not torch.equal(world.rows, worlds(one_class_context(seed=1), beta=0.1, alpha=0.5)[1].rows)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(sharing(pretraining_epochs=1), kind)


def test_workers_equal_this_process():
    algorithm = sharing(pretraining_epochs=1)
    assert gap(play(algorithm, "norm"), play(algorithm, "norm", workers=2)) == 0


def test_it_resumes_in_both_stages():
    assert_resumes(sharing(pretraining_epochs=2), "norm", count=2)


def test_it_is_fedavg_on_the_enlarged_clients():
    """With alpha 0 and no warm-up: FedAvg on what the hold-out leaves. With shared data: other weights."""
    world = make_world(shape=(3, 8, 8))
    ctx = make_context(make_model("cnn", world), world, LOCAL, rounds=3)
    (left,) = sharing(alpha=0.0).stages(ctx)
    plain, _ = run_stages(FedAvg(), left.context)
    assert gap(play(sharing(alpha=0.0)), plain) == 0
    assert gap(play(sharing(alpha=1.0)), plain) > 1e-3


@pytest.mark.parametrize(("alpha", "epochs"), [(0.5, 1), (0.5, 0), (0.0, 1), (0.0, 0)])
def test_shared_examples_and_the_warm_up_model_are_sent_once(alpha, epochs):
    """6 clients: 1 model each down besides, and alpha |G| examples of 64 uint8 pixels and an int64 label."""
    world = make_world()
    model = make_model("cnn", world)
    algorithm = sharing(pretraining_epochs=epochs, alpha=alpha)
    _, done = run_stages(algorithm, make_context(model, world, LOCAL, rounds=2))
    size = sum(value.numel() * 8 for value in model.params().values())
    held = 4 * round(0.2 * 120 / 4)
    part = round(alpha * 4 * round(0.2 * (120 - held) / 4))
    first, second = ((each.bytes_up, each.bytes_down) for name, each in done if name == "training")
    assert first == (3 * size, 3 * size + 6 * (epochs * size + part * (64 + 8)))
    assert second == (3 * size, 3 * size)


def test_the_warm_up_model_is_sgd_on_the_shared_examples_alone():
    """Two epochs of 20 examples with a batch of 8."""
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL, rounds=2)
    state, _ = run_stages(sharing(pretraining_epochs=2, pretraining_batch_size=8), ctx, limit=2)
    shared, _ = worlds(ctx)
    assert len(shared.rows) == 20
    sgd, _ = run_stages(Centralized(), replace(ctx, world=shared, local=replace(LOCAL, epochs=1)))
    assert gap(state, sgd) == 0


@pytest.mark.parametrize(("given", "decay"), [(1.0, 1.0), (None, 0.5)])
def test_the_warm_up_s_learning_rate_by_hand(given, decay):
    """Two epochs of one batch each, of all of G: w1 = w0 - lr g(w0), w2 = w1 - lr decay g(w1)."""
    world = make_world()
    model = make_model("linear", world)
    ctx = make_context(model, world, Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0, lr_decay=0.5))
    algorithm = sharing(pretraining_epochs=2, pretraining_batch_size=100, pretraining_lr_decay=given)
    state, _ = run_stages(algorithm, ctx, limit=2)
    shared, _ = worlds(ctx)
    once = by_hand(model, model.params(), shared, 0, 0.5)
    twice = by_hand(model, once, shared, 0, 0.5 * decay)
    for name, expected in twice.items():
        torch.testing.assert_close(state["params"][name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"beta": 0.3}, "algorithm.beta"),  # 4,000 examples and 1,000 held out: at most 0.25
        ({"beta": 1e-5}, "algorithm.beta"),
        ({"beta": float("inf")}, "algorithm.beta"),
        ({"holdout": 1.0}, "algorithm.holdout"),
        ({"holdout": 0.9999}, "algorithm.holdout"),
        ({"alpha": 1.1}, "algorithm.alpha"),
    ],
    ids=str,
)
def test_settings(wrong, key):
    with pytest.raises(ConfigError) as error:
        sharing(**wrong).stages(one_class_context())
    assert error.value.key == key


def test_nothing_that_clients_are_evaluated_on_is_shared():
    world = make_world([50] * 4)
    kept = replace(world, held=torch.arange(0, 200, 3), held_sizes=torch.tensor([67]))
    algorithm = DataSharing(holdout=0.2)
    assert torch.isin(algorithm.hold_out(world, 0), kept.held).any()
    assert not torch.isin(algorithm.hold_out(kept, 0), kept.held).any()


def test_noise_by_client_is_refused():
    """Shared examples are nobody's."""
    ctx = one_class_context()
    noise = Noise(torch.full((len(ctx.world.y),), 0.25), 0)
    with pytest.raises(ConfigError, match=r"partition\.noise=0\.25: must be 0: the shared examples"):
        sharing().stages(replace(ctx, world=replace(ctx.world, noise=noise)))
