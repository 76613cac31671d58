"""Rows together: the cohort's models as one stack, stepped as one (GPUs; one process).

Clients are sorted by their number of steps, so that finished ones fall off the end of the stack
instead of being padded; only an epoch's last partial batches are padded, with weight 0.
"""

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedexp import tree
from fedexp.engine.client import Interrupted, OneClient, Rule, Workshop
from fedexp.engine.exchange import Batch, Sent
from fedexp.engine.optimizer import Optimizer, clip
from fedexp.engine.plan import batches, noise_key
from fedexp.tree import Params, Stack, Tree


def train_together(shop: Workshop, rule: Rule, round: int, ids: list[int], sent: Sent) -> tuple[Stack, Tensor]:
    """Train all of `ids` at once: their new models [K, ...] and mean local losses [K]."""
    world, device = shop.world, shop.world.device
    plans = [batches(shop.seed, round, client, int(world.sizes[client]), shop.local) for client in ids]
    order = sorted(range(len(ids)), key=lambda k: -len(plans[k]))
    taken = [len(plans[k]) for k in order]
    rows, weight, whole = _lay_out(shop, [plans[k] for k in order], [ids[k] for k in order])
    base = torch.tensor([noise_key(shop.seed, round, ids[k]) for k in order], device=device)

    rank = torch.tensor(order, device=device)
    view = OneClient(*(_in_order(part, rank) for part in (sent.start, sent.extra, sent.memory)))
    stack = {name: leaf.clone() for name, leaf in view.start.items()}
    names = [name for name in shop.model.weights if name in stack]
    optimizer = Optimizer([stack[name] for name in names], shop.local, shop.local.rate(round), fused=False)
    total = torch.zeros(len(ids), device=device)

    for step in range(taken[0]):
        active = sum(count > step for count in taken)
        keys = base[:active] + step
        chosen = rows[:active, step]
        batch = Batch(world.prepare(chosen, keys), world.y[chosen], weight[:active, step], keys)
        live = {name: leaf[:active] for name, leaf in stack.items()}
        own = OneClient(*(tree.take(part, slice(active)) for part in view))
        grads, loss, statistics = _gradients(shop, rule, names, live, batch, own, keys, not whole[step])
        flat = [grads[name] for name in names]
        if shop.local.max_grad_norm is not None:
            flat = clip(flat, shop.local.max_grad_norm, stacked=True)
        optimizer.step([live[name] for name in names], flat, active)
        for name, value in statistics.items():
            live[name].copy_(value)
        total[:active] += loss
        if shop.stopped():
            raise Interrupted
    back = torch.argsort(rank)
    mean_loss = total / torch.tensor(taken, device=device)
    return tree.take(stack, back), mean_loss[back]


def _in_order(part: Tree, rank: Tensor) -> Tree:
    """Rows `rank` of every leaf; a row that all clients share stays one in memory."""
    return tree.apply(lambda leaf: leaf if tree.is_spread(leaf) else leaf[rank], part)


def _gradients(
    shop: Workshop, rule: Rule, names: list[str], live: Stack, batch: Batch, sent: OneClient, keys: Tensor,
    padded: bool,
) -> tuple[Params, Tensor, Params]:  # fmt: skip
    """Each row's corrected gradient, loss and running statistics, all [active, ...]."""

    def client(weights: Params, buffers: Params, batch: Batch, sent: OneClient, key: Tensor):
        def objective(weights: Params):
            loss, statistics = shop.objective(rule, weights, buffers, batch, sent, key, padded)
            return loss, (loss.detach(), statistics)

        grads, (loss, statistics) = grad(objective, has_aux=True)(weights)
        return rule.correct(grads, {**weights, **buffers}, sent), loss, statistics

    weights = {name: live[name] for name in names}
    buffers = {name: leaf for name, leaf in live.items() if name not in weights}
    # What all share is vectorised as one: a frozen model is then passed by the whole cohort as a single large batch.
    once = OneClient(*(tree.apply(lambda leaf: leaf[0] if tree.is_spread(leaf) else leaf, part) for part in sent))
    rows = OneClient(*(tree.apply(lambda leaf: None if tree.is_spread(leaf) else 0, part) for part in sent))
    return vmap(client, in_dims=(0, 0, 0, rows, 0))(weights, buffers, batch, once, keys)


def _lay_out(shop: Workshop, plans: list[list[Tensor]], ids: list[int]) -> tuple[Tensor, Tensor, list[bool]]:
    """Example ids and weights [K, steps, B] on the device, and whether a step needs no padding."""
    width = min(shop.local.batch_size, max(len(step) for plan in plans for step in plan))
    steps = len(plans[0])
    rows = torch.zeros(len(ids), steps, width, dtype=torch.int64)
    weight = torch.zeros(len(ids), steps, width, dtype=shop.world.dtype)
    whole = [True] * steps
    for k, (plan, client) in enumerate(zip(plans, ids)):
        start = shop.world.starts[client]
        for step, positions in enumerate(plan):
            rows[k, step, : len(positions)] = positions + start
            weight[k, step, : len(positions)] = 1
            whole[step] &= len(positions) == width
    device = shop.world.device
    return shop.world.rows[rows.to(device)], weight.to(device), whole
