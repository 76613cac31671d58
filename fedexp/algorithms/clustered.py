"""Clustered federated learning: K models, and each client trains the one of its cluster.

The base of IFCA, FedSoft, FeSEM and of clusters by label distributions. The papers measure each client's
model on data like its own; `observe` does that with every test example: a model's accuracy on each class,
weighted by the client's own label distribution. Whose model is which is asked anew of every client there, also
of those drawn long ago or never. As one global model, the cluster models' logits are summed (FedConcat,
appendix D.8).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Engine, Sent, Trained
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.measure.skew import shares
from fedexp.models import Model
from fedexp.randomness import generator
from fedexp.tree import Params, Stack
from fedexp.world import World

_CHUNK = 1000  # examples in one forward pass


@dataclass
class Clustered(FedAvg):
    """clusters: K. State: "params" the cluster models [K, ...], "assigned" each client's cluster [N]."""

    clusters: int = 5

    def __post_init__(self) -> None:
        whole = isinstance(self.clusters, int) and self.clusters >= 1
        require(whole, "algorithm.clusters", self.clusters, "must be a number of at least 1")

    def check(self, world: World) -> None:
        require(
            self.clusters <= world.clients, "algorithm.clusters", self.clusters,
            f"must be at most clients={world.clients}",
        )  # fmt: skip

    def init(self, world: World, model: Model, params: Params) -> State:
        models = tree.apply(torch.clone, tree.spread(params, self.clusters))
        return {"round": 0, "params": models, "assigned": torch.zeros(world.clients, dtype=torch.int64)}

    def assign(self, state: State, ids: Tensor, engine: Engine) -> State:
        """Find the clusters of this round's participants, before anything is trained."""
        return state

    def choices(self, state: State, ids: Tensor, engine: Engine) -> Tensor:
        """The clusters that clients `ids` would choose among the models as they are now; here those that they have.

        Sends nothing: where a round's participants choose, `assign` notes what that takes.
        """
        return state["assigned"][ids]

    def settled(self, state: State, engine: Engine) -> State:
        """The State in which every client has chosen anew."""
        everyone = torch.arange(engine.world.clients)
        return {**state, "assigned": self.choices(state, everyone, engine)}

    def round(self, state: State, world: World, engine: Engine, gen: Generator) -> State:
        ids = self.select(state, world, gen)
        state = self.assign(state, ids, engine)
        sent = self.send(state, ids)
        trained = engine.train(self, state, ids, sent)
        return {**self.merge(state, ids, sent, trained), "round": state["round"] + 1}

    def send(self, state: State, ids: Tensor) -> Sent:
        return Sent(self.centre(state, ids))

    def merge(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> State:
        """Each cluster's n_k-weighted mean; a cluster of which nobody took part keeps its model."""
        member = F.one_hot(state["assigned"][ids], tree.length(state["params"])).T
        return {**state, "params": means(state["params"], trained.params, member * trained.sizes)}

    def centre(self, state: State, ids: Tensor) -> Stack:
        return tree.take(state["params"], state["assigned"][ids])

    def predict(self, state: State, model: Model, x: Tensor) -> Tensor:
        models = state["params"]
        return torch.stack([model(one, x, training=False) for one in tree.unstack(models)]).sum(0)

    def observe(self, state: State, engine: Engine) -> dict[str, float]:
        """Mean over clients of their model's accuracy on their share of the test distribution."""
        by_class, there = class_accuracy(state["params"], engine)
        counts = engine.world.label_counts * there
        held = counts.sum(1) > 0
        assigned = self.settled(state, engine)["assigned"]
        score = (shares(counts[held]) * by_class[assigned[held]]).sum(1).mean()
        return {"assigned_accuracy": float(score)}

    def conclude(self, state: State, engine: Engine) -> dict[str, Any]:
        return self.outcome(self.settled(state, engine))

    def outcome(self, settled: State) -> dict[str, Any]:
        """What `conclude` says of clients that have chosen."""
        sizes = torch.bincount(settled["assigned"], minlength=tree.length(settled["params"]))
        return {"clients_by_cluster": sizes.tolist()}


def distinct(params: Params, count: int) -> Stack:
    """`count` differently initialised models: `params`, and copies with each tensor's entries shuffled.

    Where weights are drawn independently from one distribution a tensor, as PyTorch draws them, shuffling
    them is another draw, whatever the distribution; constants (BatchNorm) stay as they are.
    """

    def shuffled(copy: int, place: int, leaf: Tensor) -> Tensor:
        order = torch.randperm(leaf.numel(), generator=generator(0, "distinct", copy, place)).to(leaf.device)
        return leaf.flatten()[order].view(leaf.shape)

    others = [
        {name: shuffled(copy, place, leaf) for place, (name, leaf) in enumerate(params.items())}
        for copy in range(1, count)
    ]
    return tree.stack([params, *others])


def means(models: Stack, returned: Stack, weights: Tensor) -> Stack:
    """Model s of [K, ...] becomes the mean of `returned` by weights[s]; it stays where these are all zero."""
    fresh = [
        tree.mean(returned, own) if bool(own.sum() > 0) else old for own, old in zip(weights, tree.unstack(models))
    ]
    return tree.stack(fresh)


@torch.no_grad()
def losses(models: Stack, client: int, engine: Engine) -> Tensor:
    """Cross-entropy of each of K models on each of a client's training examples, un-augmented: [K, n_k]."""
    world = engine.world

    def score(one: Params, rows: Tensor) -> Tensor:
        logits = engine.model(one, world.prepare(rows), training=False)
        return F.cross_entropy(logits, world.y[rows], reduction="none")

    parts = world.of(client).split(_CHUNK)
    return torch.stack([torch.cat([score(one, rows) for rows in parts]) for one in tree.unstack(models)])


@torch.no_grad()
def class_accuracy(models: Stack, engine: Engine) -> tuple[Tensor, Tensor]:
    """Each model's accuracy on the test examples of each class [K, C] (CPU), and which classes have any [C]."""
    world = engine.world
    hits = torch.zeros(tree.length(models), world.classes, dtype=torch.float64)
    for start in range(0, len(world.test_y), _CHUNK):
        rows = slice(start, start + _CHUNK)
        x, labels = world.prepare_test(rows), world.test_y[rows].cpu()
        for row, one in enumerate(tree.unstack(models)):
            right = engine.model(one, x, training=False).argmax(1).cpu() == labels
            hits[row] += torch.bincount(labels[right], minlength=world.classes)
    counts = torch.bincount(world.test_y.cpu(), minlength=world.classes)
    return hits / counts.clamp_min(1), counts > 0
