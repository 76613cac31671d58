"""What passes between the server and a cohort. Sizes: K clients, B batch size."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedexp import tree
from fedexp.tree import Params, Stack, Tree

State = dict[str, Any]  # the server's and the clients' memory: nested dicts of tensors, and plain numbers


class Batch(NamedTuple):
    """One client's batch: prepared x [B, ...], y [B], weight [B] (0 for padding).

    key: int64 [], this client's step: a loss that needs noise draws it with randomness.uniform(key, count,
    stream), streams from 1000 on (those below are the layers').
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    key: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Mean of per-example `values` [B] over the examples that count."""
        return (values * self.weight).sum() / self.weight.sum()


class Sent(NamedTuple):
    """What each of the K clients has when its local training starts. Every leaf is [K, ...].

    start: the model it trains from. extra: whatever else the server sends. memory: what the client kept
    from its own earlier rounds; readable in `loss` and `correct` like the rest, but not communication.
    travels: False where nothing crosses a network (centralized training).
    """

    start: Stack
    extra: Tree = {}
    memory: Tree = {}
    travels: bool = True

    def to(self, device: torch.device) -> "Sent":
        """Memory, which may be kept elsewhere, on the device where clients train."""
        return self._replace(memory=tree.to(self.memory, device))


class Trained(NamedTuple):
    """What comes back: models [K, ...]; batches taken, examples and mean local loss [K] of each client;
    and what the clients send up besides (every leaf [K, ...])."""

    params: Stack
    steps: Tensor
    sizes: Tensor
    loss: Tensor
    reply: Tree = {}


class Exchange(NamedTuple):
    """One sending and what came back, kept by the engine for the measures of the round.

    Either may be None: Trained where clients only received, Sent where they only sent. Such transfers
    put their tensors into `extra` and `reply`, so that bytes are counted in one way. examples: how many
    local training went through. judge: asks for the accuracy [K] of the models as they were received, each
    on its client's own training data.
    """

    ids: Tensor
    sent: Sent | None
    trained: Trained | None
    examples: int = 0
    judge: Callable[[], Tensor] | None = None


class OneClient(NamedTuple):
    """`Sent` as `loss` and `correct` see it: one client's row of every leaf."""

    start: Params
    extra: Tree
    memory: Tree
