"""Clustered federated learning: M models, and each client trains the one of its cluster.

The base of IFCA, FedSoft, FeSEM and of clusters by label distributions. The papers measure each client's model on data
like its own; `metrics` does that with every test example: a model's accuracy on each class, weighted by the client's
own label distribution. For `metrics` every client chooses its model anew, even one that was drawn long ago or never.
Where a single global model is needed, the cluster models' logits are summed (FedConcat, appendix D.8).
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import AtLeast
from fedexp.engine import Client, Context, Examples, State
from fedexp.errors import require
from fedexp.measure import accuracy
from fedexp.models import Model
from fedexp.randomness import generator
from fedexp.tree import Params, Stack, Tree


@dataclass(frozen=True, kw_only=True)
class Clustered(FedAvg):
    """clusters: M. State: "params" the cluster models [M, ...], "assigned" each client's cluster [N], on the CPU.

    Here clients stay in their clusters; subclasses say how they change them.
    """

    clusters: Annotated[int, AtLeast(1)] = 5

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        require(
            not isinstance(self.clusters, int) or self.clusters <= ctx.clients, "algorithm.clusters", self.clusters,
            f"must be at most clients={ctx.clients}",
        )  # fmt: skip
        require(
            not self.server_optimizer.init(ctx.model.params()),
            "server_optimizer", type(self.server_optimizer).__name__,
            "remembers steps of one global model, and each cluster has a model; use server_optimizer=sgd",
        )  # fmt: skip

    def init(self, ctx: Context, params: Params) -> State:
        models = tree.stack([params] * self.clusters)
        return {"params": models, "assigned": torch.zeros(ctx.clients, dtype=torch.int64)}

    def choices(self, state: State, ids: Tensor, ctx: Context) -> Tensor:
        """The clusters [n] in which clients `ids` would be if they took part now; here their present ones.

        No bytes are counted here: what crosses the network in a round is `download` and `upload`.
        """
        return state["assigned"][ids]

    def assignment(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Tensor:
        """The clusters [K] in which this round's cohort trained, as known to the server. state: as the round began."""
        return self.choices(state, ids, ctx)

    def membership(self, assigned: Tensor, uploads: Tree, models: int) -> Tensor:
        """The weight of each client of the cohort for each model [K, M], besides its number of examples."""
        return F.one_hot(assigned, models)

    def settled(self, state: State, ctx: Context) -> State:
        """The State after every client has chosen its cluster anew."""
        return {**state, "assigned": self.choices(state, torch.arange(ctx.clients), ctx)}

    def shared(self, params: Stack, ctx: Context) -> Params:
        """The entries of one model: a client trains one."""
        return tree.take(params, 0)

    def download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        return {"model": tree.take(state["params"], self.choices(state, ids, ctx))}

    def combine(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Params:
        return tree.mean(uploads["update"], self.selection.weights(ids, ctx) * uploads["membership"])

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        """Each model steps as FedAvg's does, along the updates of the clients that count for it; without any it stays
        as it is."""
        models, fresh = state["params"], []
        own = self.assignment(state, ids, uploads, ctx)
        counts = self.membership(own, uploads, tree.length(models))
        for model, count in zip(tree.unstack(models), counts.T):
            rows = count.nonzero().flatten()
            if len(rows) > 0:
                some, starts = tree.take(uploads, rows), tree.take(models, own[rows])
                # Changes are taken from this model, not from the one that each client started from; for a client of
                # this cluster the two are the same.
                apart = {name: tree.change(starts[name], model[name]) for name in some["update"]}
                update = {name: change + apart[name] for name, change in some["update"].items()}
                seen = {**some, "update": update, "membership": count[rows]}
                model = super().aggregate({**state, "params": model}, ids[rows], seen, ctx, gen)["params"]
            fresh.append(model)
        assigned = state["assigned"].clone()
        assigned[ids] = own
        return {**state, "params": tree.stack(fresh), "assigned": assigned}

    def starts(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Stack:
        return tree.take(state["params"], self.assignment(state, ids, uploads, ctx))

    def center(self, state: State, ids: Tensor, ctx: Context) -> Stack:
        return tree.take(state["params"], state["assigned"][ids])

    def predict(self, state: State, model: Model, x: Tensor) -> Tensor:
        return torch.stack([model(one, x, training=False) for one in tree.unstack(state["params"])]).sum(0)

    def metrics(self, state: State, ctx: Context) -> dict[str, float]:
        """Mean over clients of their model's accuracy on their share of the test distribution."""
        models = [partial(ctx.model, one, training=False) for one in tree.unstack(state["params"])]
        by_class = torch.stack([accuracy.by_class(model, ctx.world) for model in models])
        counts = ctx.world.label_counts * (ctx.world.test_counts > 0)
        held = counts.sum(1) > 0
        assigned = self.settled(state, ctx)["assigned"]
        shares = counts[held].double() / counts[held].sum(1, keepdim=True)
        score = (shares * by_class[assigned[held]]).sum(1).mean()
        return {"assigned_accuracy": float(score)}

    def summary(self, state: State, ctx: Context) -> dict[str, Any]:
        return self.outcome(self.settled(state, ctx))

    def outcome(self, settled: State) -> dict[str, Any]:
        """What `summary` reports, given a State from `settled`."""
        sizes = torch.bincount(settled["assigned"], minlength=tree.length(settled["params"]))
        return {"clients_by_cluster": sizes.tolist()}


@dataclass(frozen=True, kw_only=True)
class ChosenByClients(Clustered):
    """Each client receives all models and chooses by their fit to its own examples (`inspect`). It uploads the result
    of `inspect` and the update of the model that it trained. The models start as different ones."""

    identical_start = False  # True where all models start as the same one

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        source = ctx.model.pretrained
        require(
            self.identical_start or source is None, "model.pretrained", source,
            "the clusters' first models are shuffled copies of one, which destroys trained weights; use no pre-trained "
            "weights, or algorithm=ifca with algorithm.identical_start=true",
        )  # fmt: skip

    def init(self, ctx: Context, params: Params) -> State:
        state = super().init(ctx, params)
        return state if self.identical_start else {**state, "params": distinct(params, self.clusters, ctx.weights)}

    def choice(self, found: Tree) -> Tensor:
        """The cluster that a client chose, given its result of `inspect`: int64 []; or those of K clients: [K]."""
        return found["choice"]

    def choices(self, state: State, ids: Tensor, ctx: Context) -> Tensor:
        """Clients choose anew and without their memory: results of earlier rounds do not count here."""
        found = ctx.engine.inspect(self, ids, self.download(state, ids, ctx), {})
        return self.choice(found).cpu()

    def assignment(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Tensor:
        return self.choice(uploads).cpu()

    def download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        return {"model": tree.spread(state["params"], len(ids))}

    def start(self, download: Tree, memory: Tree, found: Tree) -> Params:
        row = self.choice(found).view(1)  # a vector of one index: a scalar index cannot be vectorized
        return tree.apply(lambda leaf: leaf.index_select(0, row).squeeze(0), download["model"])

    def upload(self, params: Params, client: Client) -> Tree:
        return {**super().upload(params, client), **client.found}


def distinct(params: Params, count: int, trained: Collection[str]) -> Stack:
    """`count` differently initialised models: `params`, and copies in which the entries of each tensor whose name is
    among `trained` are shuffled.

    PyTorch draws a tensor's initial weights independently from one distribution, so shuffling them gives
    another draw from it, whatever the distribution; constants (BatchNorm) stay as they are.
    """

    def shuffled(copy: int, place: int, leaf: Tensor) -> Tensor:
        order = torch.randperm(leaf.numel(), generator=generator(0, "distinct", copy, place)).to(leaf.device)
        return leaf.flatten()[order].view(leaf.shape)

    others = [
        {
            name: shuffled(copy, place, leaf) if name in trained else leaf
            for place, (name, leaf) in enumerate(params.items())
        }
        for copy in range(1, count)
    ]
    return tree.stack([params, *others])


def losses(model: Model, models: Stack, examples: Examples) -> Tensor:
    """Cross-entropy of each of M models on each of a client's training examples: [M, n_k]."""

    def score(x: Tensor, y: Tensor) -> Tensor:
        logits = [model(one, x, training=False) for one in tree.unstack(models)]
        return torch.stack([F.cross_entropy(each, y, reduction="none") for each in logits], 1)

    return examples.each(score).T.contiguous()  # one row per model, so that the means of equal models are equal
