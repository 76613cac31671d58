"""What a hook returns wrongly is told by the hook's name, in the same words by both engines."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from worlds import gap, make_context, make_model, make_world, rounds, start

from fedexp.algorithms.ditto import Ditto
from fedexp.algorithms.fedavg import FedAvg
from fedexp.compression.none import NoCompression
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.privacy.none import NoPrivacy
from fedexp.selection.uniform import Uniform
from fedexp.server_optimizer.sgd import Sgd
from fedexp.system.none import Ideal


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
MODEL = "must return all of the model's entries in their names, shapes and types; "
GRADIENTS = "must return the gradients in their names, shapes and types; "
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
    ("start", lambda found, *_: {"head.bias": found["head.bias"]}, MODEL + "head.weight is missing"),
    ("start", on_each(torch.Tensor.half), MODEL + "head.weight is float16 [4, 64], not float64 [4, 64]"),
    ("start", on_each(torch.sum), MODEL + "head.weight is float64 [], not float64 [4, 64]"),
    ("trains", give(None), "must return a list of names, not " + MISSING),
    ("trains", give("head.weight"), "must return a list of names, not a str"),
    ("trains", give(["head.weight", "head.bais"]), "entries of start or of the model; there is no head.bais"),
    ("passes", give([]), "must return a list of Pass, of which exactly one is the algorithm's own: Pass(self, local)"),
    ("passes", lambda found, *_: found * 2, "must return a list of Pass, of which exactly one is the algorithm's own"),
    ("shared", lambda found, *_: [*found], TREE + "a list"),
    ("enter", give(None), "must return the whole State: {**state, ...}, not " + MISSING),
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
    ("upload", lambda found, *_: {"update": found["update"]["head.bias"]}, 'as "update", not float64 [4]'),
    ("upload", lambda found, *_: {"other": found["update"]}, 'must send an "update", or combine or aggregate must do'),
    ("upload", lambda found, *_: {**found, "privacy": {}}, "must return other names than privacy, under which parts"),
    ("correct", on_each(torch.Tensor.float), GRADIENTS + "head.weight is float32 [4, 64], not float64 [4, 64]"),
    ("answers", give((torch.tensor([0, 1]), 1.0)), "a pair, (bool [3], seconds); it gave int64 [2] and 1.0 (float)"),
    ("answers", give(torch.ones(2).bool()), "must return a pair, (bool [3], seconds), not bool [2]"),
    ("combine", on_each(torch.Tensor.float), "types; head.weight is float32 [4, 64], not float64 [4, 64]"),
    ("remember", give(None), TREE + MISSING),
    ("remember", with_entry([1.0]), ENTRY + "mine is a list"),
    ("select", give([0, 1, 2]), "must return the clients' ids as a tensor, int64 [K], not a list"),
    ("select", lambda *_: torch.tensor([0.0, 1.0]), "must return the clients' ids, int64 [K]; it is float32 [2]"),
    ("select", lambda *_: torch.tensor([0, 6]), "must return the clients' ids, from 0 to 5; it gave [0, 6]"),
    ("select", lambda *_: torch.tensor([-1, 2]), "must return the clients' ids, from 0 to 5; it gave [-1, 2]"),
    ("download", with_entry(3.0), ENTRY + "mine is 3.0 (float)"),
    ("download", lambda found, state, *_: {"model": state["params"]}, "all of them the same); model.head.weight is [4"),
    ("combine", give(None), TREE + MISSING),
    (
        "combine",
        lambda found, state, ids, uploads, ctx: uploads["update"],
        "head.weight is float64 [3, 4, 64], not float64 [4, 64]",
    ),
    (
        "combine",
        with_entry(torch.zeros(())),
        "without the clients' axis, in their names, shapes and types; mine is non",
    ),
    ("aggregate", give(None), "must return the whole State: {**state, ...}, not " + MISSING),
    (
        "aggregate",
        lambda found, *_: {"params": found["params"]},
        "{**state, ...}; it lacks round, stage, clock, optimi",
    ),
    (
        "aggregate",
        lambda found, *_: {**found, "params": {**found["params"], "head.bias": torch.zeros(3)}},
        'with the global model as "params" in their names, shapes and types; head.bias is float32 [3], not float64 [4]',
    ),
    (
        "aggregate",
        lambda found, *_: {**found, "params": {"head.bias": found["params"]["head.bias"]}},
        'with the global model as "params" in their names, shapes and types; head.weight is missing',
    ),
]


def test_what_cannot_be_vectorized_says_what_to_do():
    world = make_world()
    ctx = make_context(make_model("linear", world), world, cohort=3, engine="vectorized")
    with pytest.raises(RuntimeError) as error:
        rounds(Changed(hook="loss", change=lambda found, *_: found * found.item()), ctx, 1)
    (note,) = error.value.__notes__
    assert "hardware.engine=workers trains them one by one" in note


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
@pytest.mark.parametrize(
    "local", [Local(steps=2, batch_size=2), Local(epochs=1, batch_size=8)]
)  # without and with padding
def test_all_clients_would_share_a_global_generator_s_numbers(draw, local):
    world = make_world()
    contexts = [
        make_context(make_model("linear", world), world, local, cohort=3, engine=each)
        for each in ("vectorized", "workers")
    ]
    with pytest.raises(
        ConfigError, match=r"^loss: must not draw from Python's or NumPy's global generator where clients"
    ):
        rounds(Changed(hook="loss", change=lambda found, *_: found * draw()), contexts[0], 1)
    rounds(Changed(hook="loss", change=lambda found, *_: found * draw()), contexts[1], 1)


@pytest.mark.parametrize(("hook", "change", "right"), CASES)
@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
def test_a_wrong_value_is_told_by_the_name_of_its_hook(hook, change, right, mechanism):
    world = make_world()
    ctx = make_context(make_model("linear", world), world, Local(lr=0.1, batch_size=8), cohort=3, engine=mechanism)
    algorithm = Changed(hook=hook, change=change)
    with pytest.raises(ConfigError) as error:
        rounds(algorithm, ctx, 1)
    assert str(error.value).startswith(f"{hook}: must ") and right in str(error.value)


def count(found, params, client):
    return {"count": client.memory["count"].add_(1)}


def halve(found, params, client):
    for leaf in client.download["model"].values():
        leaf.mul_(0.5)
    return found


def move(found, state, *others):
    for leaf in state["params"].values():
        leaf += 1
    return found


def weigh(found, state, ids, uploads, *others):
    for leaf in uploads["update"].values():
        leaf *= 0.5
    return found


def extend(found, state, *others):
    state["more"] = 1
    return found


def replace_one(found, state, *others):
    state["params"]["head.bias"] = torch.zeros(4)
    return found


@torch.no_grad()
def spoil_at_once(found, model, params, *others):
    spoil(found, params)
    return found


def spoil(found, params, *others):
    for leaf in params.values():
        leaf.sub_(1)
    return found


@dataclass(frozen=True, kw_only=True)
class Counting(Changed):
    def memory(self, ctx, params):
        return {"count": torch.zeros(())}


@pytest.mark.parametrize(
    ("hook", "change", "said"),
    [
        ("remember", count, "a client's hook: must not change .* in place, .* (memory.own.count was changed)"),
        ("upload", halve, "a client's hook: must not change .* in place, .* (download.model.head.weight was changed)"),
        (
            "aggregate",
            move,
            "aggregate: must not change .* State in place, .* (state.params.head.weight was changed)",
        ),
        ("aggregate", extend, "aggregate: must not change .* State in place, .* (state.more was changed)"),
        ("aggregate", replace_one, "aggregate: must not change .* in place, .* (state.params.head.bias was changed)"),
        ("loss", spoil_at_once, "loss or correct: must not change the weights, params, in place"),
        ("combine", weigh, "aggregate: must not change the uploads .* in place, .* (uploads.update.head.weight was ch"),
        (
            "upload",
            spoil,
            "a client's hook: must not change the trained weights, params, in place, .* (head.weight was",
        ),
        (
            "remember",
            spoil,
            "a client's hook: must not change the trained weights, params, in place, .* (head.weight w",
        ),
        (
            "correct",
            lambda found, grads, *more: spoil(found, *more),
            "correct: must not change the weights, params, in",
        ),
        (
            "correct",
            lambda found, grads, *_: (grads.pop("head.bias"), grads)[1],
            "correct: must return .*bias is missing",
        ),
        (
            "correct",
            lambda found, grads, *_: (grads.update(mine=found["head.bias"]), grads)[1],
            "correct: .* mine is none",
        ),
    ],
)
@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
def test_what_others_read_must_not_be_changed_in_place(hook, change, said, mechanism):
    """Clients' memory would otherwise count for all clients, and differently with each number of workers."""
    world = make_world()
    ctx = make_context(make_model("linear", world), world, Local(lr=0.1, batch_size=8), cohort=3, engine=mechanism)
    with pytest.raises(ConfigError, match=said.replace("(", r"\(").replace(")", r"\)")):
        rounds(Counting(hook=hook, change=change), ctx, 1)


@dataclass(frozen=True, kw_only=True)
class Smooths(FedAvg):
    """Works in place on what `inspect` is shown."""

    def inspect(self, model, download, memory, examples):
        counts, rows = examples.label_counts, examples.rows
        counts += 1
        rows.zero_()
        return {"share": counts / counts.sum()}


def test_what_inspect_is_shown_is_its_own():
    ends = []
    for algorithm in (FedAvg(), Smooths()):
        world = make_world()
        before = world.label_counts.clone(), world.rows.clone()
        ctx = make_context(make_model("linear", world), world, Local(lr=0.1, batch_size=8), cohort=3)
        ends.append(rounds(algorithm, ctx, 2)[-1].after["params"])
        assert torch.equal(world.label_counts, before[0]) and torch.equal(world.rows, before[1])
    assert all(torch.equal(leaf, ends[1][name]) for name, leaf in ends[0].items())


def test_a_selection_s_memory_is_what_learn_returns():
    class Forgets(Uniform):
        def learn(self, memory, ids, uploads, ctx):
            pass

    world = make_world()
    ctx = make_context(make_model("linear", world), world, cohort=3)
    with pytest.raises(ConfigError, match=r"^selection.learn: must return a dict, not None \(is a return missing"):
        rounds(FedAvg(selection=Forgets()), ctx, 1)


@dataclass(frozen=True, kw_only=True)
class Reviewing(FedAvg):
    given: Any

    def inspect(self, model, download, memory, examples):
        return {"mean": torch.zeros(())}

    def review(self, model, params, client, examples):
        return self.given(examples, params)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda examples, params: None, TREE + MISSING),
        (lambda examples, params: {"n": len(examples)}, ENTRY + "n is "),
        (
            lambda examples, params: {"labels": examples.labels},
            "must return the same names, shapes and types for every",
        ),
        (
            lambda examples, params: {"mean": torch.ones(())},
            "must return other names than inspect does, since client.f",
        ),
        (lambda examples, params: spoil({}, params), "must not change the trained weights, params, in place"),
    ],
)
def test_what_review_returns_wrongly_is_told(given, said):
    world = make_world()
    ctx = make_context(make_model("linear", world), world, cohort=3, engine="vectorized")
    with pytest.raises(ConfigError) as error:
        rounds(Reviewing(given=given), ctx, 1)
    assert str(error.value).startswith("review: must ") and said in str(error.value)


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
    with pytest.raises(
        ConfigError, match=r"^inspect: must return the same names, shapes and types for every client; y is int64 \["
    ):
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
    with pytest.raises(
        ConfigError, match=r"^correct: must return the gradients in their names, shapes and types; head"
    ):
        rounds(WrongLater(), ctx, 1)


KINDS = {
    "selection": Uniform, "privacy": NoPrivacy, "compression": NoCompression, "server_optimizer": Sgd, "system": Ideal,
}  # fmt: skip


def with_part(function, change):
    """FedAvg with a part of which one function (PART.FUNCTION) returns what `change` makes of the usual result and of
    its arguments."""
    name, _, hook = function.partition(".")
    usual = getattr(KINDS[name], hook)
    changed = type("Own", (KINDS[name],), {hook: lambda self, *given: change(usual(self, *given), *given)})
    return FedAvg(**{name: changed()})


def halved(found, *_):
    return {name: leaf for name, leaf in found.items() if name == "head.bias"}


PARTS = [
    ("selection.weights", give(torch.ones(1)), "a weight for each of the 3 clients, a tensor [3], not float32"),
    ("selection.weights", lambda *_: torch.tensor([1, -1, 1]), "of at least 0, not all 0; it gave [1, -1, 1]"),
    ("selection.weights", lambda *_: torch.zeros(3), "weights of at least 0, not all 0; it gave [0.0, 0.0,"),
    ("selection.weights", lambda *_: torch.full((3,), torch.nan), "weights of at least 0, not all 0"),
    ("privacy.weights", lambda found, *_: found[:, None], "a weight for each of the 3 clients, a tensor [3]"),
    ("privacy.clip", lambda found, *_: found[0], "must return a pair, (update, what else is uploaded), not"),
    ("privacy.clip", lambda found, *_: (halved(found[0]), {}), "the update's entries in their names, shapes"),
    ("privacy.perturb", on_each(torch.mean), "the update in their names, shapes and types; head.weight is"),
    ("compression.encode", lambda found, *_: found[0], "must return a pair, (payload, memory), not a dict"),
    ("compression.encode", lambda found, *_: (found[0], None), TREE + MISSING),
    ("compression.encode", lambda found, *_: (found[0], {"e": found[0]["head.bias"]}), "compression.init"),
    ("compression.decode", halved, "the update in their names, shapes and types; head.weight is missing"),
    ("compression.merge", halved, "the update in their names, shapes and types; head.weight is missing"),
    ("server_optimizer.step", lambda found, *_: found[0], "must return a pair, (entries, memory), not a dict"),
    ("server_optimizer.step", lambda found, *_: (halved(found[0]), {}), "shapes and types; head.weight is missing"),
    ("system.work", lambda *_: torch.ones(1).long(), "epochs or steps of at least 0, int64 [3]; it gave int64 [1]"),
    ("system.work", lambda *_: torch.tensor([1, 1, -1]), "of at least 0, int64 [3]; it gave [1, 1, -1]"),
    ("system.answers", lambda found, ids, *_: (ids, 1.0), "a pair, (bool [3], seconds); it gave int64 [3] and"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "change", "right"), PARTS)
@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
def test_a_part_s_wrong_value_is_told_by_the_name_of_its_function(function, change, right, mechanism):
    world = make_world()
    ctx = make_context(make_model("linear", world), world, Local(lr=0.1, batch_size=8), cohort=3, engine=mechanism)
    with pytest.raises(ConfigError) as error:
        rounds(with_part(function, change), ctx, 1)
    named = "answers" if function == "system.answers" else function
    assert str(error.value).startswith(f"{named}: must return ") and right in str(error.value)


@pytest.mark.parametrize("function", sorted({each[0] for each in PARTS}))
def test_parts_that_change_nothing_are_accepted(function):
    world = make_world()
    ctx = make_context(make_model("linear", world), world, cohort=3)
    (done,) = rounds(with_part(function, lambda found, *_: found), ctx, 1)
    (plain,) = rounds(FedAvg(), ctx, 1)
    assert all(torch.equal(plain.after["params"][name], leaf) for name, leaf in done.after["params"].items())


def test_a_survey_sends_a_row_to_each_client():
    world = make_world()
    ctx = make_context(make_model("linear", world), world, cohort=3)
    state = start(FedAvg(), ctx)
    with pytest.raises(ConfigError, match=r"^the download of survey: must return a row for each of the 2 clients"):
        FedAvg().survey(state, torch.tensor([1, 3]), {"model": state["params"]}, ctx)


@pytest.mark.parametrize("chosen", [torch.tensor([True, False, True]), torch.tensor([0, 3]), [0, 1]], ids=str)
def test_a_selection_chooses_positions_among_its_candidates(chosen):
    world = make_world()
    ctx = make_context(make_model("linear", world), world, cohort=3)

    class Asks(Uniform):
        def question(self, algorithm, number, ctx):
            return algorithm

        def choose(self, ids, answers, ctx):
            return chosen

    with pytest.raises(ConfigError, match=r"^selection\.choose: must return positions among the candidates"):
        rounds(FedAvg(selection=Asks()), ctx, 1)


def counts_padding(found, model, params, batch, client):
    return F.cross_entropy(model(params, batch.x), batch.y)


def divides_by_the_width(found, model, params, batch, client):
    return (F.cross_entropy(model(params, batch.x), batch.y, reduction="none") * batch.weight).mean()


def is_zero_at_first(found, model, params, batch, client):
    """Where a client has moved, the second term counts padding; in its first step both models are the same."""
    return found + F.mse_loss(model(params, batch.x), model(client.download["model"], batch.x))


LOCAL = Local(lr=0.1, batch_size=8)


@pytest.mark.parametrize("loss", [counts_padding, divides_by_the_width, is_zero_at_first])
def test_a_loss_that_counts_padding_is_refused_where_batches_are_padded(loss):
    """Alone, no client has padding, and such a loss is right: in a stack it would silently be another one."""
    world = make_world([5, 5, 5, 30, 8, 20])
    model, algorithm = make_model("linear", world), Changed(hook="loss", change=loss)
    with pytest.raises(ConfigError, match=r"^loss: must return a mean over the examples that count, by batch\.mean"):
        rounds(algorithm, make_context(model, world, LOCAL, cohort=6, engine="vectorized"), 2)
    (alone,) = rounds(algorithm, make_context(model, world, LOCAL, cohort=3), 1)
    (plain,) = rounds(FedAvg(), make_context(model, world, LOCAL, cohort=3), 1)
    if loss is not is_zero_at_first:
        assert gap(alone.after, plain.after) < 1e-12


@dataclass(frozen=True, kw_only=True)
class OwnClasses(FedAvg):
    """Cross-entropy over the classes that a client holds: that of any other class is infinite."""

    def inspect(self, model, download, memory, examples):
        return {"absent": examples.label_counts == 0}

    def loss(self, model, params, batch, client):
        return batch.cross_entropy(model(params, batch.x).masked_fill(client.found["absent"], -torch.inf))


@pytest.mark.parametrize("algorithm", [OwnClasses(), FedAvg()])
@pytest.mark.parametrize("lr", [0.1, 1e308])
def test_a_loss_without_padding_is_accepted_also_where_it_is_infinite_or_diverges(algorithm, lr):
    world = make_world([3, 3, 4, 13, 8, 3], classes=10)
    for mechanism in ("vectorized", "workers"):
        ctx = make_context(make_model("linear", world), world, Local(lr=lr, batch_size=8), cohort=6, engine=mechanism)
        (*_, last) = rounds(algorithm, ctx, 2)
        assert bool(last.loss.isfinite().all()) == (lr < 1)


def test_an_algorithm_that_holds_a_tensor_can_be_vectorized():
    world = make_world()

    @dataclass(frozen=True, kw_only=True)
    class Holds(Ditto):
        held: Any = None

    ctx = make_context(make_model("linear", world), world, LOCAL, cohort=3, engine="vectorized")
    assert len(rounds(Holds(held=torch.ones(2)), ctx, 2)) == 2


def test_types_are_the_same_for_every_client():
    """A worker writes its results into room that was made for those of the first client."""
    world = make_world()

    def number(found, model, download, memory, examples):
        return {"n": torch.tensor(1 if examples.client % 2 else 0.5)}

    @dataclass(frozen=True, kw_only=True)
    class Sends(FedAvg):
        def inspect(self, model, download, memory, examples):
            return number({}, model, download, memory, examples)

        def upload(self, params, client):
            return {**super().upload(params, client), "n": client.found["n"]}

    for mechanism, workers, hook in (("vectorized", 1, "inspect"), ("workers", 2, "upload or remember")):
        ctx = make_context(make_model("linear", world), world, cohort=6, engine=mechanism, workers=workers)
        with pytest.raises(
            ConfigError, match=f"^{hook}: must return the same names, shapes and types for every client"
        ):
            rounds(Sends(), ctx, 1)
