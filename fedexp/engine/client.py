"""One client's local training: the work that `apart` runs as it is and `together` vectorises."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedexp.engine.exchange import Batch, OneClient
from fedexp.engine.optimizer import Optimizer, clip
from fedexp.engine.plan import batches, noise_key
from fedexp.engine.settings import Local
from fedexp.models.classifier import Model
from fedexp.models.layers import training
from fedexp.tree import Params, Tree
from fedexp.world import World


class Rule(Protocol):
    """The part of an algorithm that clients run."""

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor: ...

    def correct(self, grads: Params, params: Params, sent: OneClient) -> Params: ...


class Interrupted(Exception):
    """Training was asked to stop (a signal); the state of the last finished round still stands."""


@dataclass
class Workshop:
    """All that local training needs besides an algorithm and what was sent."""

    model: Model
    world: World
    local: Local
    seed: int
    precision: str = "float32"
    convolution: str = "auto"
    stopped: Callable[[], bool] = lambda: False

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16)

    def objective(
        self, rule: Rule, weights: Params, buffers: Params, batch: Batch, sent: OneClient, key: Tensor,
        padded: bool, alone: bool = False,
    ) -> tuple[Tensor, Params]:  # fmt: skip
        """One client's loss on one batch, and the running statistics that its layers would keep."""
        tiles = alone and self.convolution == "auto" and self.precision == "float32"
        with training(batch.weight if padded else None, key, alone, tiles) as now, self.autocast():
            loss = rule.loss(self.model, {**weights, **buffers}, batch, sent)
        return loss, {name: value.detach() for name, value in now.statistics.items()}

    def train(self, rule: Rule, round: int, client: int, sent: OneClient) -> tuple[Params, Tensor]:
        """Train one client from `sent.start`: its new Params and its mean loss over all steps."""
        world, local = self.world, self.local
        params = {name: value.detach().clone() for name, value in sent.start.items()}
        weights = {name: params[name].requires_grad_() for name in self.model.weights if name in params}
        buffers = {name: value for name, value in params.items() if name not in weights}
        rows, names, tensors = world.of(client), list(weights), list(weights.values())
        optimizer = Optimizer(tensors, local, local.rate(round), fused=True)
        base, total = noise_key(self.seed, round, client), 0.0
        plan = batches(self.seed, round, client, len(rows), local)
        for step, positions in enumerate(plan):
            chosen, key = rows[positions.to(rows.device)], torch.tensor(base + step, device=rows.device)
            x = world.prepare(chosen, key)
            if x.dim() == 4:  # the first convolution, of few channels, is faster so
                x = x.to(memory_format=torch.channels_last)
            weight = torch.ones(len(chosen), dtype=x.dtype, device=x.device)
            batch = Batch(x, world.y[chosen], weight, key)
            loss, statistics = self.objective(rule, weights, buffers, batch, sent, key, padded=False, alone=True)
            grads = torch.autograd.grad(loss, tensors, materialize_grads=True)
            with torch.no_grad():
                grads = list(rule.correct(dict(zip(names, grads)), params, sent).values())
                if local.max_grad_norm is not None:
                    grads = clip(grads, local.max_grad_norm, stacked=False)
            optimizer.step(tensors, grads)
            buffers.update(statistics)
            total = total + loss.detach()
            if self.stopped():
                raise Interrupted
        done = {**{name: value.detach() for name, value in weights.items()}, **buffers}
        return {name: done[name] for name in params}, torch.as_tensor(total / len(plan), dtype=torch.float32)


def one(sent: Any, row: int) -> OneClient:
    """Row `row` of a Sent, as one client sees it."""

    def pick(tree: Tree) -> Tree:
        return {name: pick(leaf) if isinstance(leaf, dict) else leaf[row] for name, leaf in tree.items()}

    return OneClient(pick(sent.start), pick(sent.extra), pick(sent.memory))
