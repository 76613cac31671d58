"""Accuracy per client: of the model that each client would use, on its own data."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Context, State, client_rows
from fedexp.measure import accuracy
from fedexp.models import Model
from fedexp.round import Round, first_models, personal_models, tuned_models
from fedexp.tree import Params
from fedexp.world import World

_AT_ONCE = 50  # clients whose models are in memory at once

Models = Callable[[Tensor], list[Params]]  # from clients' ids [n] to their models


@torch.no_grad()
def received_accuracy(done: Round) -> dict[str, Tensor]:
    """Mean and variance over the cohort of the accuracy of each client's model before training, on the client's own
    training examples (CADIS, figure 8b)."""
    model, world = done.ctx.model, done.ctx.world
    pairs = zip(done.ids.tolist(), first_models(done))
    each = [_right(model, params, world, world.of(client)) for client, params in pairs]
    scores = torch.tensor(each, dtype=torch.float64)
    return {"received_accuracy_mean": scores.mean(), "received_accuracy_variance": scores.var(correction=0)}


def evaluate(
    algorithm: FedAvg, state: State, ids: Tensor, ctx: Context, clients: World, on: str
) -> tuple[dict[str, float], pd.DataFrame]:
    """Accuracy of clients `ids` [n]: summarised over all of them, and in a row for each.

    on: train, their own training examples; holdout, those held out of training; matched, the global test set with each
    class weighted by the client's own label distribution, which is the exact expectation of accuracy on test examples
    distributed like its own. Classes that the test set lacks are left out, and a client that holds no others has no
    accuracy. With data_sharing, train includes what was shared, and matched is by labels as they were before. clients:
    the world of the clients, if the algorithm trains in another (centralized training). A client that was never drawn
    uses the model from which it would start; where clients keep a whole model of their own (ditto, pfedme, apfl), it
    is mixed with, or is, the run's initial one. The column examples: how many of the client's own examples the accuracy
    stands for.

    If clients can use several models (`_used`), each model has its own columns. client_coverage: the share of these
    clients that have taken part, for algorithms whose clients remember something.
    """
    columns: dict[str, Any] = {"client": ids.tolist(), "round": state["round"]}
    for name, models in _used(algorithm, state, ctx, pooled=ctx.clients != clients.clients).items():
        scores, examples = zip(*_scores(models, ids, ctx, clients, on))
        columns |= {"examples": examples, f"accuracy{name}": scores}
    table = pd.DataFrame(columns)
    found = summary(table)
    if any(True for _ in tree.leaves(state["memory"]["first"]["own"])):
        found["client_coverage"] = float(client_rows.held(state["memory"], ids).double().mean())
    return found, table.set_index("client")


def summary(table: pd.DataFrame) -> dict[str, float]:
    """The accuracies of all clients that have one: mean, mean weighted by examples, standard deviation (of these
    clients, and as an estimate from a sample), and the mean of the worst tenth of the clients (rounded up)."""
    found: dict[str, float] = {}
    for name in table.filter(regex="^accuracy"):
        held = table[table[name].notna()]
        scores, examples, of = held[name], held["examples"], name.removeprefix("accuracy")
        found |= {
            f"client_accuracy_mean{of}": scores.mean(),
            f"client_accuracy_weighted{of}": (scores * examples).sum() / examples.sum(),
            f"client_accuracy_std{of}": scores.std(ddof=0),
            f"client_accuracy_worst10{of}": scores.nsmallest(-(-len(held) // 10)).mean(),
        }
        if len(held) > 1:
            found[f"client_accuracy_sample_std{of}"] = scores.std(ddof=1)
    return {name: float(value) for name, value in found.items()}


def _used(algorithm: FedAvg, state: State, ctx: Context, pooled: bool) -> dict[str, Models]:
    """The models that clients can use, by the suffix of their columns' names: "" for the one that each would use now,
    /global for the server's if clients have another one besides, and a name for each kind of fine-tuned model."""

    def everyones(some: Tensor) -> list[Params]:
        return [state["params"]] * len(some)

    if pooled:  # the algorithm trains without the clients
        return {"": everyones}
    found: dict[str, Models] = {"": lambda some: personal_models(algorithm, state, some, ctx)}
    if algorithm.two_models:
        found["/global"] = everyones
    for name, tuner in algorithm.tuning().items():
        found[f"/{name}"] = partial(tuned_models, tuner, algorithm, state, ctx=ctx)
    return found


@torch.no_grad()
def _scores(models: Models, ids: Tensor, ctx: Context, clients: World, on: str) -> Iterator[tuple[float, int]]:
    """(accuracy, number of the client's examples that it stands for) of each client."""
    home = clients if ctx.clients != clients.clients else ctx.world  # the world whose examples the models read
    before = by_class = None
    for some in ids.split(_AT_ONCE):
        for client, params in zip(some.tolist(), models(some)):
            if on != "matched":
                rows = home.of(client) if on == "train" else home.held_out(client)
                yield _right(ctx.model, params, home, rows), len(rows)
                continue
            if before is None or not _same(params, before):  # one global model is evaluated once
                before = params
                by_class = accuracy.by_class(partial(ctx.model, params, training=False), ctx.world)
            own = clients.label_counts[client] * (ctx.world.test_counts > 0)
            yield float((own * by_class).sum() / own.sum()), int(own.sum())


def _right(model: Model, params: Params, world: World, rows: Tensor) -> float:
    """A model's accuracy on the training examples `rows`."""
    hits = [
        accuracy.predicted(model(params, world.prepare(part), training=False)) == world.y[part]
        for part in rows.split(world.at_once)
    ]
    return float(torch.cat(hits).double().mean())


def _same(first: Params, second: Params) -> bool:
    """Whether two models are known to be the same tensors in memory (an address of 0 is unknown)."""
    return first.keys() == second.keys() and all(
        0 != first[name].data_ptr() == second[name].data_ptr() and first[name].stride() == second[name].stride()
        for name in first
    )
