"""What the engine asks of an algorithm, and what one client has at hand. Sizes: K clients, B batch size, C classes."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedexp import randomness
from fedexp.config.settings import Local
from fedexp.models.classifier import Model
from fedexp.tree import Params, Tree, take
from fedexp.world import World


class Batch(NamedTuple):
    """One client's batch: prepared x [B, ...], y [B], share [B].

    share: each example's weight in the batch's mean: 1 over the number of examples, 0 for padding, which batches have
    where a whole cohort trains at once: no mean over examples may count it.
    key: int64 [], the random key of this client's step: a loss that needs noise draws it with
    randomness.uniform(key, count, stream), with a stream from 1000 to 1023 (lower ones belong to the layers, higher
    ones to compressions).
    """

    x: Tensor
    y: Tensor
    share: Tensor
    key: Tensor

    @property
    def weight(self) -> Tensor:
        """[B]: 1 for each example, 0 for padding."""
        return (self.share > 0).to(self.share)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of per-example `values` [B] over the examples that count."""
        return (values * self.share).sum()

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Mean cross-entropy of logits [B, C] over the examples that count.

        The mean of F.cross_entropy would count padding as well, which batches have where clients train at once.
        """
        return (logits.log_softmax(1).gather(1, self.y[:, None]).squeeze(1) * -self.share).sum()


class Client(NamedTuple):
    """What ONE client has at hand in a pass of local training and as it uploads. Only `download` crossed the network.

    memory: what the client kept from its own earlier rounds; found: what `inspect` returned before training and, as the
    client uploads, `review` after it; start: the weights that training began from. All others are tensors []: size:
    n_k; steps: number of local steps; path: momentum SGD's effective number of steps (`Local.path`); lr: this round's
    learning rate; round: from 0; key: int64, for this client's noise, drawn as with a Batch's key.
    """

    download: Tree
    memory: Tree
    found: Tree
    start: Params
    size: Tensor
    steps: Tensor
    path: Tensor
    lr: Tensor
    round: Tensor
    key: Tensor


class Examples:
    """ONE client's own training examples, un-augmented: what `inspect` and `review` may look at.

    round: from 0; None outside of a round (in a survey or an evaluation).
    """

    def __init__(self, world: World, client: int, seed: int, number: int | None = None) -> None:
        self.world, self.client, self.seed, self.round = world, client, seed, number
        self.rows = world.of(client).clone()  # a hook may change it

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> Tensor:
        """int64 [n_k]."""
        return self.world.y[self.rows]

    @property
    def label_counts(self) -> Tensor:
        """int64 [C], on the device."""
        return self.world.label_counts[self.client].to(self.world.device, copy=True)

    def batches(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """(x, y) of up to `size` examples at a time; None: as many as suit the device."""
        for rows in self.rows.split(size or self.world.at_once):
            yield self.world.prepare(rows), self.world.y[rows]

    def each(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """function(x, y) -> [n, ...] over all examples: [n_k, ...]."""
        return torch.cat([function(x, y) for x, y in self.batches()])

    def accuracy(self, predict: Callable[[Tensor], Tensor]) -> Tensor:
        """Fraction of the examples that predict(x) -> logits gets right: float64 []."""
        return self.each(lambda x, y: predict(x).argmax(1) == y).double().mean()

    def numpy_generator(self, purpose: str) -> np.random.Generator:
        """This client's own randomness for one purpose, the same in every round."""
        return randomness.numpy_generator(self.seed, purpose, self.client)


class Compression(Protocol):
    """The part of an algorithm that encodes updates; see fedexp/compression."""

    def encode(self, update: Params, memory: Tree, key: Tensor) -> tuple[Tree, Tree]: ...


class Privacy(Protocol):
    """The part of an algorithm that clips updates for differential privacy; see fedexp/privacy."""

    def clip(self, update: Params, received: Tree) -> tuple[Params, Tree]: ...


class Question(Protocol):
    """What the server can ask clients without training: any object with an algorithm's `inspect`."""

    def inspect(self, model: Model, download: Tree, memory: Tree, examples: Examples) -> Tree: ...


class ClientFunctions(Question, Protocol):
    """The part of an algorithm that ONE client runs; fedexp/algorithms/fedavg.py says what each is for."""

    @property
    def compression(self) -> Compression: ...

    @property
    def privacy(self) -> Privacy: ...

    @property
    def trains_anew(self) -> bool: ...

    def passes(self, local: Local) -> "list[Pass]": ...

    def trains(self, model: Model) -> list[str]: ...

    def start(self, download: Tree, memory: Tree, found: Tree) -> Params: ...

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor: ...

    def correct(self, grads: Params, params: Params, client: Client) -> Params: ...

    @property
    def review(self) -> "Callable[[Model, Params, Client, Examples], Tree] | None": ...

    def upload(self, params: Params, client: Client) -> Tree: ...

    def remember(self, params: Params, client: Client) -> Tree: ...


class Pass(NamedTuple):
    """One training pass of a client in a round, with an optimizer of its own. Most algorithms make one per round.

    It begins with its functions' `start`, with the memory that the previous pass left, and ends with their `remember`.
    The algorithm's own pass, whose functions are the algorithm itself, also uploads, and its loss is the one reported.
    local: the settings of its training. stream: names its order of examples and its noise; "": the round's own.
    """

    functions: ClientFunctions
    local: Local
    stream: str = ""


class Trained(NamedTuple):
    """The results of a cohort's training: uploads as they crossed the network and memory, leaves [K, ...]; the mean
    local loss [K]; and how many examples each client's training went through [K]."""

    uploads: Tree
    memory: Tree
    loss: Tensor
    examples: list[int]

    def rows(self, chosen: Tensor) -> "Trained":
        """The results of the clients at positions `chosen`."""
        examples = [self.examples[row] for row in chosen.tolist()]
        return Trained(take(self.uploads, chosen), take(self.memory, chosen), self.loss[chosen], examples)


State = dict[str, Any]  # the server's memory and the clients': nested dicts of tensors, and plain numbers
