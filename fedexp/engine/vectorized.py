"""Vectorized training: a cohort's models form one stack, and one step updates all of them (GPUs; one process).

Clients are sorted by their number of steps, so that finished ones fall off the end of the stack
instead of being padded; only an epoch's last partial batches are padded, with weight 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedexp import tree
from fedexp.engine import returned
from fedexp.engine.contract import Batch, Client, ClientFunctions, Pass
from fedexp.engine.local_training import LocalTraining, Task, finish, remembered
from fedexp.engine.optimizer import Optimizer, clip
from fedexp.engine.schedule import positions
from fedexp.engine.steps import Steps, over_leaves
from fedexp.errors import Interrupted
from fedexp.randomness import places
from fedexp.tree import Params, Stack, Tree

_PREPARED = 2**25  # entries of prepared examples in memory at once


def train_vectorized(
    training: LocalTraining, algorithm: ClientFunctions, number: int, tasks: list[Task], received: Tree
) -> Tree:
    """Carry out all tasks at once. received: downloads and memory; gives uploads, memory and mean local losses, named
    as in `Trained`; all leaves are [K, ...]."""
    done: Tree = {}
    versions = returned.versions(received)
    kept, clients = received["memory"], [task.client for task in tasks]
    for passes in zip(*(training.passes(algorithm, task) for task in tasks)):
        functions = passes[0].functions
        stack, cohort, losses, rank = _carry_out(training, passes, number, clients, received["download"], kept["own"])
        back, trained = torch.argsort(rank), returned.versions(stack)
        if functions is algorithm:
            uploads, kept = over_clients(
                lambda params, client, errors: finish(algorithm, training.model.weights, params, client, errors),
                stack, cohort, tree.choose(kept["compression"], rank),
            )  # fmt: skip
            done, kept = {"uploads": tree.choose(uploads, back), "loss": losses[back]}, tree.choose(kept, back)
        else:
            kept = {**kept, "own": tree.choose(over_clients(partial(remembered, functions), stack, cohort), back)}
        returned.unchanged("a client's hook", returned.TRAINED, stack, trained)
    returned.unchanged("a client's hook", "what the client received, its download or its memory", received, versions)
    return {**done, "memory": kept}


def _carry_out(
    training: LocalTraining, passes: Sequence[Pass], number: int, ids: list[int], download: Tree, memory: Tree
) -> tuple[Stack, Client, Tensor, Tensor]:
    """One pass of all clients `ids`; between clients it differs in length alone. Gives the weights with which they end,
    the clients and their mean losses, all in order of falling numbers of steps; and each row's position in `ids`."""
    world, device, algorithm, local = training.world, training.world.device, passes[0].functions, passes[0].local
    taken = [part.local.schedule(int(world.sizes[client]))[1] for part, client in zip(passes, ids)]
    order = sorted(range(len(ids)), key=lambda k: -taken[k])
    ids, taken, passes = [ids[k] for k in order], [taken[k] for k in order], [passes[k] for k in order]

    rank = torch.tensor(order, device=device)
    received, own = (tree.choose(part, rank) for part in (download, memory))
    cohort = _cohort(training, passes, number, ids, received, own)
    stack = {name: leaf.clone() for name, leaf in cohort.start.items()}
    names = returned.trained(algorithm.trains(training.model), stack, training.model.weights)
    rate = local.rate(number)
    lr = torch.tensor(rate, dtype=world.dtype, device=device) if training.compiled else rate
    optimizer = Optimizer([stack[name] for name in names], local, lr, fused=False)
    step = partial(_compiled, torch.compile(_step, fullgraph=True)) if training.compiled else _step
    total = torch.zeros(len(ids), dtype=world.dtype, device=device)
    steps = Steps(partial(step, training, algorithm), optimizer, stack, cohort, total)
    alike = algorithm, replace(local, epochs=1, steps=None)  # lengths do not change a step
    run = training.recordings.of(alike, steps) if training.recordings is not None else steps

    ignored: list[Tensor] = []  # whether the losses of some padded steps ignored their padding
    for index, (active, batch, padded) in enumerate(_batches(training, passes, number, ids, taken, cohort.key)):
        before = places() if index == 0 else None
        if padded:
            count = training.padded_steps[type(algorithm)] = training.padded_steps.get(type(algorithm), 0) + 1
            if count & (count - 1) == 0:  # the 1st, 2nd, 4th, ...: a term may be zero until weights have moved
                ignored.append(_ignores_padding(training, algorithm, run.stack, cohort, active, batch, count == 1))
        run(active, batch, padded)
        if before is not None:
            returned.loss_without_global_generators(places() == before)
        if training.stopped():
            raise Interrupted
    if ignored:  # only now: each look at a number makes a GPU wait
        returned.loss_without_padding(torch.stack(ignored).all())
    return run.stack, training.reviewed(algorithm, ids, run.stack, cohort, number), run.total / cohort.steps, rank


def _compiled(step: Callable[..., None], *arguments: Any) -> None:
    """A step that is compiled anew for each number of active rows, which PyTorch allows only eight times by default."""
    with torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000):
        step(*arguments)


def _step(
    training: LocalTraining, algorithm: ClientFunctions, optimizer: Optimizer, live: Stack, total: Tensor, batch: Batch,
    cohort: Client, padded: bool,
) -> None:  # fmt: skip
    """One local step of all active rows, without waiting for the device: updates `live` [active, ...] in place and adds
    the losses to `total` [active]."""

    weights = {name: live[name] for name in algorithm.trains(training.model) if name in live}
    buffers = {name: leaf for name, leaf in live.items() if name not in weights}
    versions = {} if torch.compiler.is_compiling() else returned.versions(live)
    grads, loss, statistics = _differentiated(training, algorithm, weights, buffers, batch, cohort, padded)
    returned.unchanged("loss or correct", "the weights, params,", live if versions else {}, versions)
    if optimizer.local.max_grad_norm is not None:
        grads = clip(grads, optimizer.local.max_grad_norm, stacked=True, model=training.model.weights)
    optimizer.step(list(weights.values()), [grads[name] for name in weights], len(total))
    for name, value in statistics.items():
        live[name].copy_(value)
    total.add_(loss)


def _differentiated(
    training: LocalTraining, algorithm: ClientFunctions, weights: Stack, buffers: Stack, batch: Batch, cohort: Client,
    padded: bool,
) -> tuple[Stack, Tensor, Stack]:  # fmt: skip
    """Each row's corrected gradient, loss and running statistics."""

    def one(weights: Params, buffers: Params, batch: Batch, client: Client) -> tuple[Params, Tensor, Params]:
        def objective(weights: Params) -> tuple[Tensor, tuple[Tensor, Params]]:
            loss, statistics = training.objective(algorithm, {**weights, **buffers}, batch, client, padded)
            return loss, (loss.detach(), statistics)

        grads, (loss, statistics) = grad(objective, has_aux=True)(weights)
        changed = algorithm.correct(dict(grads), {**weights, **buffers}, client)
        return returned.corrected(grads, changed), loss, statistics

    return over_clients(one, weights, buffers, batch, cohort)


def _ignores_padding(
    training: LocalTraining, algorithm: ClientFunctions, stack: Stack, cohort: Client, active: int, batch: Batch,
    first: bool,
) -> Tensor:  # fmt: skip
    """Whether losses ignore padding, bool []. One that does not would differ from that of a client that trains alone,
    without padding, and the results with it, silently.

    Padding is replaced by other examples. At the first padded step the most padded client is also compared with itself
    without padding; later on weights can be so large that these two losses differ by rounding.
    """
    live, now = ({name: leaf[:active] for name, leaf in stack.items()}, over_leaves(itemgetter(slice(active)), cohort))
    names = [name for name in algorithm.trains(training.model) if name in live]
    weights, buffers = {name: live.pop(name) for name in names}, live
    real = batch.share > 0  # the first ones of each row; other padding is its first example, so of the client's own
    x = torch.where(real.view(*real.shape, *[1] * (batch.x.dim() - 2)), batch.x, batch.x[:, :1])
    other = batch._replace(x=x, y=torch.where(real, batch.y, batch.y[:, :1]))
    before, after = (
        _differentiated(training, algorithm, weights, buffers, each, now, True)[1] for each in (batch, other)
    )  # fmt: skip
    alike = _alike(before, after, 1e-4)
    if not first or training.precision in ("bfloat16", "tf32"):  # whose rounding depends much on the shapes
        return alike
    row = int(real.sum(1).argmin())
    one, most = slice(row, row + 1), int(real[row].sum())
    alone = Batch(batch.x[one, :most], batch.y[one, :most], batch.share[one, :most], batch.key[one])
    weights, buffers, now = (over_leaves(itemgetter(one), part) for part in (weights, buffers, now))
    unpadded = _differentiated(training, algorithm, weights, buffers, alone, now, False)[1]
    return alike & _alike(before[one], unpadded, 0.03)


def _alike(first: Tensor, second: Tensor, tolerance: float) -> Tensor:
    """Whether losses [K] are equal but for rounding; those that diverge count as equal."""
    diverged = ~(first.isfinite() & second.isfinite())
    return (torch.isclose(first, second, rtol=tolerance, atol=1e-6) | diverged).all()


def over_clients(function: Any, *parts: Any) -> Any:
    """`function` of ONE client, mapped over stacks: nested dicts (or a Client) of leaves [K, ...], at least one.

    What all clients share is passed once, not K times: a frozen model then sees the whole cohort as one large batch.
    """
    once = [over_leaves(lambda leaf: leaf[0] if tree.is_spread(leaf) else leaf, part) for part in parts]
    axes = [over_leaves(lambda leaf: None if tree.is_spread(leaf) else 0, part) for part in parts]
    try:
        return vmap(function, in_dims=tuple(axes))(*once)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        error.add_note(
            "All clients train at once here. Where a hook or a layer does not allow that, as by .item(), a branch on a "
            "value or torch.randn, hardware.engine=workers trains them one by one. Noise is drawn from batch.key or "
            "client.key (fedexp.randomness)."
        )
        raise


def _cohort(
    training: LocalTraining, passes: Sequence[Pass], number: int, ids: list[int], download: Tree, memory: Tree
) -> Client:  # fmt: skip
    """A Client whose leaves are those of all clients, [K, ...]."""
    functions, own = passes[0].functions, training.model.own
    found = training.inspect_all(functions, ids, download, memory, number)
    numbers = training.scalars(passes, number, ids)
    with torch.no_grad():
        start = over_clients(
            lambda down, memory, found, key: returned.one_model("start", functions.start(down, memory, found), own),
            download, memory, found, numbers["key"],
        )  # fmt: skip
    return Client(download, memory, found, start, **numbers)


def _batches(
    training: LocalTraining, passes: Sequence[Pass], number: int, ids: list[int], taken: list[int], keys: Tensor
) -> Iterator[tuple[int, Batch, bool]]:
    """Step by step: how many rows are still active, their batches [active, ...], and whether any is padded.

    taken: each client's number of steps, the largest first. Examples are prepared for many steps at once.
    """
    world, sizes = training.world, training.world.sizes
    tables = [
        torch.cat(list(positions(training.seed, number, client, int(sizes[client]), each.local, each.stream)))
        for each, client in zip(passes, ids)
    ]
    width = max(table.shape[1] for table in tables)
    where = torch.full((taken[0], len(ids), width), -1)
    for k, table in enumerate(tables):
        where[: len(table), k, : table.shape[1]] = table
    real = where >= 0  # [steps, K, B]
    share = real.to(world.dtype) / real.sum(2, keepdim=True).clamp_min(1)
    starts = torch.tensor([world.starts[client] for client in ids])
    rows, share = (part.to(world.device, non_blocking=True) for part in (where.clamp_min(0) + starts[:, None], share))
    count = (torch.tensor(taken) > torch.arange(taken[0])[:, None]).sum(1).tolist()
    padded = (real.sum((1, 2)) < torch.tensor(count) * width).tolist()
    rows = world.rows[rows]
    keys = keys + torch.arange(taken[0], device=world.device)[:, None]
    at_once = max(1, _PREPARED // (rows[0].numel() * math.prod(world.shape)))
    for first in range(0, taken[0], at_once):
        block = slice(first, first + at_once), slice(count[first])
        x, y = world.prepare(rows[block], keys[block]).contiguous(), world.y[rows[block]]
        for step, active in enumerate(count[first : first + at_once]):
            batch = Batch(x[step, :active], y[step, :active], share[first + step, :active], keys[first + step, :active])
            yield active, batch, padded[first + step]
