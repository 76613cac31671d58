"""What a hook returns wrongly is told by the hook's name, in the same words by both engines."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from worlds import make_context, make_model, make_world, rounds

from fedexp.algorithms.ditto import Ditto
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Local
from fedexp.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Changed(FedAvg):
    """FedAvg, of which one hook returns what `change` makes of its arguments and of FedAvg's result."""

    hook: str
    change: Callable[..., Any]

    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        if name.startswith("__") or name != object.__getattribute__(self, "hook"):
            return found
        return lambda *arguments: object.__getattribute__(self, "change")(found(*arguments), *arguments)


def give(value):
    return lambda *_: value


def with_entry(value):
    return lambda found, *_: {**found, "mine": value}


def on_each(function):
    return lambda found, *_: {name: function(leaf) for name, leaf in found.items()}


TREE, ENTRY = "must return a dict of tensors by name, not ", "must return nested dicts of tensors; "
MISSING = "None (is a return missing?)"
GRADIENTS = "must return the gradients in their names and shapes; "
CASES = [
    ("memory", with_entry(0), ENTRY + "mine is 0 (int)"),
    ("memory", with_entry(np.zeros(3)), ENTRY + "mine is a ndarray"),
    ("memory", give(None), TREE + MISSING),
    (
        "inspect",
        lambda found, model, download, memory, examples: {"n": len(examples.label_counts)},
        ENTRY + "n is 4 (int)",
    ),
    ("inspect", give(None), TREE + MISSING),
    ("start", give(None), TREE + MISSING),
    ("trains", give(None), "must return a list of names, not " + MISSING),
    ("trains", give("head.weight"), "must return a list of names, not a str"),
    ("loss", give(None), "must return a tensor [], not " + MISSING),
    ("loss", give(1.0), "must return a tensor [], not 1.0 (float)"),
    ("loss", lambda found, *_: found.expand(2), "must return a tensor [], such as batch.mean(values); it is [2]"),
    ("loss", lambda found, *_: found.detach(), "must return a tensor that depends on the weights in params"),
    ("correct", give(None), "must return the gradients, a dict of tensors by name, not " + MISSING),
    ("correct", on_each(torch.sum), GRADIENTS + "head.weight is float64 [], not float64 [4, 64]"),
    ("correct", with_entry(torch.zeros(())), GRADIENTS + "mine is none of them"),
    ("correct", lambda found, *_: {"head.bias": found["head.bias"]}, GRADIENTS + "head.weight is missing"),
    ("upload", give(None), TREE + MISSING),
    ("upload", lambda *_: torch.zeros(3), TREE + "float32 [3]"),
    ("upload", with_entry({"count": 3}), ENTRY + "mine.count is 3 (int)"),
    ("remember", give(None), TREE + MISSING),
    ("remember", with_entry([1.0]), ENTRY + "mine is a list"),
    ("select", give([0, 1, 2]), "must return the clients' ids as a tensor, int64 [K], not a list"),
    ("select", lambda *_: torch.tensor([0.0, 1.0]), "must return the clients' ids, int64 [K]; it is float32 [2]"),
    ("select", lambda *_: torch.tensor([0, 6]), "must return ids from 0 to 5; it gave [0, 6]"),
    ("select", lambda *_: torch.tensor([-1, 2]), "must return ids from 0 to 5; it gave [-1, 2]"),
    ("download", with_entry(3.0), ENTRY + "mine is 3.0 (float)"),
    ("download", lambda found, state, *_: {"model": state["params"]}, "all of them the same); model.head.weight is [4"),
    ("combine", give(None), TREE + MISSING),
    (
        "combine",
        lambda found, state, ids, uploads, ctx: uploads["update"],
        "head.weight is float64 [3, 4, 64], not float64 [4, 64]",
    ),
    ("combine", with_entry(torch.zeros(())), "without the clients' axis; mine is none of its entries"),
    ("aggregate", give(None), "must return the whole State: {**state, ...}, not " + MISSING),
    (
        "aggregate",
        lambda found, *_: {"params": found["params"]},
        "{**state, ...}; it lacks round, stage, clock, optimi",
    ),
]


@pytest.mark.parametrize(("hook", "change", "right"), CASES)
@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
def test_a_wrong_value_is_told_by_the_name_of_its_hook(hook, change, right, mechanism):
    world = make_world()
    ctx = make_context(make_model("linear", world), world, Local(lr=0.1, batch_size=8), cohort=3, engine=mechanism)
    algorithm = Changed(hook=hook, change=change)
    with pytest.raises(ConfigError) as error:
        rounds(algorithm, ctx, 1)
    assert str(error.value).startswith(f"{hook}: must return ") and right in str(error.value)


def test_hooks_that_change_nothing_are_accepted():
    """The cases above fail for what their hooks return, not because a hook is wrapped."""
    world = make_world()
    ctx = make_context(make_model("linear", world), world, cohort=3)
    for hook in {hook for hook, _, _ in CASES}:
        (done,) = rounds(Changed(hook=hook, change=lambda found, *_: found), ctx, 1)
        (plain,) = rounds(FedAvg(), ctx, 1)
        assert all(torch.equal(plain.after["params"][name], leaf) for name, leaf in done.after["params"].items()), hook


def test_found_values_have_the_same_shapes_for_every_client_of_a_stack():
    world = make_world()
    ctx = make_context(make_model("linear", world), world, cohort=6, engine="vectorized")
    labels = Changed(hook="inspect", change=lambda found, model, download, memory, examples: {"y": examples.labels})
    with pytest.raises(ConfigError, match=r"^inspect: must return the same names and shapes for every client; y is \["):
        rounds(labels, ctx, 1)


@dataclass(frozen=True, kw_only=True)
class Forgetful(Ditto):
    def remember(self, params, client):
        return None


@pytest.mark.parametrize(("mechanism", "workers"), [("workers", 1), ("workers", 2), ("vectorized", 1)])
def test_every_pass_is_checked_in_every_process(mechanism, workers):
    world = make_world()
    ctx = make_context(make_model("linear", world), world, cohort=3, engine=mechanism, workers=workers)
    with pytest.raises(ConfigError, match=r"^remember: must return a dict of tensors by name, not None"):
        rounds(Forgetful(), ctx, 1)


@dataclass(frozen=True, kw_only=True)
class WrongLater(FedAvg):
    """Its gradients are wrong from the second step on: only a worker meets that."""

    def correct(self, grads, params, client):
        if next(STEPS) == 0:
            return grads
        return {name: leaf.sum() for name, leaf in grads.items()}


STEPS = itertools.count()


def test_a_worker_s_error_is_the_server_s():
    world = make_world()
    ctx = make_context(make_model("linear", world), world, cohort=3, workers=2)
    with pytest.raises(ConfigError, match=r"^correct: must return the gradients in their names and shapes; head"):
        rounds(WrongLater(), ctx, 1)
