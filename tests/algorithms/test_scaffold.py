"""SCAFFOLD, option II: two clients and two rounds by hand, momentum's effective steps, bytes."""

from dataclasses import dataclass

import pytest
import torch
from worlds import by_hand, make_context, make_model, make_world, rounds

from fedexp import tree
from fedexp.algorithms.scaffold import Scaffold
from fedexp.engine import Client, Local, client_rows
from fedexp.errors import ConfigError
from fedexp.selection.uniform import Uniform


def step(params, grads, control, own, lr):
    return {name: params[name] - lr * (grads[name] - own[name] + control[name]) for name in params}


def gradient(model, params, world, client):
    moved = by_hand(model, params, world, client, 1.0)
    return {name: params[name] - moved[name] for name in params}


def controls(state, ids):
    return client_rows.take(state["memory"], torch.tensor(ids))["own"]["control"]


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_two_clients_two_rounds_by_hand(decay):
    """y <- y - lr (g - c_i + c), two steps; c_i' = c_i - c + (w - y) / (2 lr); c += mean(dc) as |S| = N.

    With decay, lr is each round's own, in the steps and in the controls.
    """
    world = make_world([6, 6])
    model = make_model("linear", world)
    local = Local(epochs=2, batch_size=100, lr=0.5, lr_decay=decay, momentum=0.0)
    state = rounds(Scaffold(), make_context(model, world, local, cohort=2), 2)[-1].after
    w = model.params()
    zero = tree.apply(torch.zeros_like, w)
    c, own = zero, [zero, zero]
    for number in range(2):
        lr = 0.5 * decay**number
        ends, fresh = [], []
        for client in (0, 1):
            y = w
            for _ in range(2):
                y = step(y, gradient(model, y, world, client), c, own[client], lr)
            ends.append(y)
            fresh.append({name: own[client][name] - c[name] + (w[name] - y[name]) / (2 * lr) for name in w})
        c = {name: c[name] + sum(fresh[i][name] - own[i][name] for i in (0, 1)) / 2 for name in w}
        own, w = fresh, {name: (ends[0][name] + ends[1][name]) / 2 for name in w}
    for name in w:
        torch.testing.assert_close(state["params"][name], w[name], rtol=0, atol=1e-12)
        torch.testing.assert_close(state["control"][name], c[name], rtol=0, atol=1e-12)
        torch.testing.assert_close(controls(state, [1])[name][0], own[1][name], rtol=0, atol=1e-12)
    assert tree.squared_distance(c, zero) > 0  # the second round was corrected


def test_server_control_moves_by_the_share_that_took_part():
    """c += (|S| / N) mean(dc): with 1 of 4 clients, a quarter of its change; the others' controls stay."""
    world = make_world([6, 6, 6, 6])
    ctx = make_context(make_model("linear", world), world, Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0), 1)
    state = rounds(Scaffold(), ctx, 1)[-1].after
    own = controls(state, [0, 1, 2, 3])["head.weight"]
    torch.testing.assert_close(state["control"]["head.weight"], own.sum(0) / 4)
    assert (own.flatten(1).abs().sum(1) > 0).sum() == 1


def test_a_client_that_is_drawn_twice_moves_the_server_control_once():
    """As CluSamp may draw it; its two uploads are equal."""

    @dataclass(frozen=True)
    class Twice(Uniform):
        def select(self, memory, ctx, gen):
            return torch.tensor([2, 0, 2])

    world = make_world([6, 6, 6, 6])
    local = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0)
    ctx = make_context(make_model("linear", world), world, local, cohort=3)
    state = rounds(Scaffold(selection=Twice()), ctx, 1)[-1].after
    own = controls(state, [0, 1, 2, 3])["head.weight"]
    assert own.flatten(1).abs().sum(1).gt(0).tolist() == [True, False, True, False]
    torch.testing.assert_close(state["control"]["head.weight"], own.sum(0) / 4)


@pytest.mark.parametrize(("weights", "share"), [("examples", [0.25, 0.75]), ("uniform", [0.5, 0.5])])
def test_models_count_by_examples_or_alike(weights, share):
    """Clients of 4 and 12 examples; the server's control moves by the plain mean whichever it is."""
    world = make_world([4, 12])
    ctx = make_context(make_model("linear", world), world, Local(epochs=1, batch_size=100, lr=0.5), cohort=2)
    (only,) = rounds(Scaffold(weights=weights), ctx, 1)
    share = torch.tensor(share, dtype=torch.float64)[only.ids]
    for name, models in only.models.items():
        expected = torch.tensordot(share, models, 1)
        torch.testing.assert_close(only.after["params"][name], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(only.after["control"][name], only.uploads["control"][name].mean(0))


@pytest.mark.parametrize(("path", "expected"), [("effective", 1 + 1.9 + 2.71), ("published", 3.0)])
def test_path_under_momentum(path, expected):
    """Constant gradient g, momentum 0.9: steps move by g, 1.9 g, 2.71 g; dividing by that recovers g."""
    local, steps = Local(lr=0.1, momentum=0.9), torch.tensor(3)
    g = torch.full((4,), 2.0, dtype=torch.float64)
    start, zero = {"w": torch.zeros_like(g)}, {"control": {"w": torch.zeros_like(g)}}
    numbers = torch.tensor(0)
    client = Client(
        {"model": start, **zero},
        zero,
        {},
        start,
        numbers,
        steps,
        local.path(steps),
        torch.tensor(0.1),
        numbers,
        numbers,
    )
    sent = Scaffold(path=path).upload({"w": -0.1 * g * (1 + 1.9 + 2.71)}, client)
    torch.testing.assert_close(sent["control"]["w"], g * 5.61 / expected)


def test_bytes_are_twice_fedavgs_and_statistics_have_no_control():
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(Scaffold(), make_context(model, world, Local(epochs=1, batch_size=8)), 1)
    weights, statistics = 4 * 9 + 4 + 4 * 2 + 36 * 4 + 4, 4 * 2
    assert (only.bytes_up, only.bytes_down) == (3 * 8 * (2 * weights + statistics),) * 2
    assert set(only.after["control"]) == set(model.weights)


def test_adam_is_refused():
    world = make_world()
    ctx = make_context(make_model("linear", world), world, Local(optimizer="adam"))
    with pytest.raises(ConfigError, match=r"local\.optimizer"):
        Scaffold().check(ctx)
