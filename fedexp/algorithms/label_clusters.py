"""Clusters of clients with similar label distributions (FedConcat, stages 1 and 2).

`labels` says where the distributions come from:
- counted: clients send their distributions, counts / n_k (stage 1-A).
- noisy: the same with Laplace noise of scale 1 / epsilon on each entry (appendix B).
- random_inputs: the server's mean softmax output of each client's first model on random images (stage 1-B, ID).
- bias: inferred from the change of the head's bias in the first round, (b_S - b_0) / (a lr) + softmax(b_0) (IB;
  Ramakrishna and Dan 2022). a is the effective number of SGD's steps (Local.path): without momentum it is the
  published S; `bias_path=published` takes S under momentum too, which infers shares far outside [0, 1].
- bias_published: softmax(b_S), by which FedConcat's published code clusters, because its b_0 changes along with
  the model.
For the last three all clients train the initial model in the first round, and their models are then merged by
cluster: it counts as an encoder round. FedAvg within each cluster follows.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.clustered import Clustered
from fedexp.algorithms.k_means import balanced_k_means, elbow, inertias, k_means
from fedexp.config.bounds import Above, AtLeast, Bound, OneOf, Within
from fedexp.engine import Context, Examples, State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.randomness import generator
from fedexp.record import pictures
from fedexp.tree import Params, Stack, Tree

_SENT = ("counted", "noisy")
_INFERRED = ("random_inputs", "bias", "bias_published")
_GUARANTEE = {
    "mechanism": "Laplace(0, 1/epsilon) on each entry of a client's label distribution, sent once; sensitivity 1",
    "protects": "the label distribution that a client sends, against adding or removing one of its examples",
    "does_not_protect": "models sent in every round, numbers of examples, and which cluster's model a client gets; and "
    "noise drawn from a known seed can be subtracted again, so this is a simulation",
}
_CHUNK = 1000  # random images in one forward pass


@dataclass(frozen=True)
class CountOrElbow(Bound):
    words = "a number of at least 1, or elbow"

    def holds(self, value: Any) -> bool:
        return value == "elbow" or (isinstance(value, int) and value >= 1)


@dataclass(frozen=True, kw_only=True)
class LabelClusters(Clustered):
    """clusters: K, or elbow. balanced: no cluster larger than N / K (times slack). random_inputs: number of random
    images, at most a million (the standard error of their mean output is then below .0005). bias_path: effective or
    published (module docstring)."""

    clusters: Annotated[Any, CountOrElbow()] = 5
    labels: Annotated[str, OneOf(*_SENT, *_INFERRED)] = "counted"
    balanced: bool = False
    slack: Annotated[float, AtLeast(1)] = 1.0
    epsilon: Annotated[float, Above(0)] = 5.0
    random_inputs: Annotated[int, Within(1, 1e6)] = 10_000
    bias_path: Annotated[str, OneOf("effective", "published")] = "effective"

    @property
    def needs_all(self) -> str:
        return "its cluster is inferred from its model of the first round" if self.labels in _INFERRED else ""

    needs_work = needs_all

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        biased = "head.bias" in ctx.model.params()
        holds = biased or not self.labels.startswith("bias")
        require(holds, "algorithm.labels", self.labels, "needs a head with a bias, which this model lacks")
        holds = self.labels != "random_inputs" or not ctx.world.tokens
        require(holds, "algorithm.labels", self.labels, "draws random numbers as inputs, and these are tokens")
        optimizer = ctx.local.optimizer
        require(
            self.labels != "bias" or optimizer == "sgd", "local.optimizer", optimizer, "must be sgd with labels=bias"
        )

    def init(self, ctx: Context, params: Params) -> State:
        """A single model; each cluster gets a copy of it once there are clusters."""
        return {"params": tree.stack([params]), "assigned": torch.zeros(ctx.clients, dtype=torch.int64)}

    def enter(self, state: State, ctx: Context) -> State:
        """All N clients send their label distributions, unless these are inferred."""
        if self.labels in _INFERRED:
            return state
        sent = self.survey(state, torch.arange(ctx.clients), {}, ctx)["label_distribution"]
        return self._grouped(state, {self.labels: sent.double().cpu()}, ctx)

    def inspect(self, model: Model, download: Tree, memory: Tree, examples: Examples) -> Tree:
        """The client's label distribution, with noise of its own under `noisy`, if a survey without a model asks."""
        if "model" in download:
            return super().inspect(model, download, memory, examples)
        own = examples.label_counts.double() / len(examples)
        if self.labels == "noisy":
            noise = examples.numpy_generator("label noise").laplace(0, 1 / self.epsilon, len(own))
            own = own + torch.from_numpy(noise).to(own)
        return {"label_distribution": own.float()}

    def select(self, state: State, ctx: Context, gen: Generator) -> Tensor:
        return super().select(state, ctx, gen) if "distributions" in state else torch.arange(ctx.clients)

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        if "distributions" not in state:
            state = self._grouped(state, self._inferred(state, ids, uploads, ctx), ctx)
        return super().aggregate(state, ids, uploads, ctx, gen)

    def _inferred(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> dict[str, Tensor]:
        """Label distributions [N, C] inferred from the first round's models; those to cluster by come first."""
        before, found = self.starts(state, ids, uploads, ctx), {}
        after = {name: before[name] + change for name, change in uploads["update"].items()}
        if self.labels == "random_inputs":
            found["random_inputs"] = self._answers(after, ctx)
        if "head.bias" in after:
            first, last = (models["head.bias"].double().cpu() for models in (before, after))
            if ctx.local.optimizer == "sgd":
                path = self._path(ctx) * ctx.local.rate(state["round"])
                found["bias"] = (last - first) / path[:, None] + first.softmax(1)
            found["bias_published"] = last.softmax(1)
        return {self.labels: found.pop(self.labels), **found}

    @torch.no_grad()
    def _answers(self, models: Stack, ctx: Context) -> Tensor:
        """Mean softmax [N, C] of each model on prepared inputs uniform in [0, 1) (eq. 3)."""
        world, clients = ctx.world, tree.unstack(models)
        total = torch.zeros(len(clients), world.classes, dtype=torch.float64)
        for start in range(0, self.random_inputs, _CHUNK):
            count = min(_CHUNK, self.random_inputs - start)
            draw = generator(ctx.seed, "random inputs", start)
            x = torch.rand(count, *world.shape, generator=draw).to(world.device, world.dtype)
            for client, params in enumerate(clients):
                total[client] += ctx.model(params, x, training=False).softmax(1).sum(0).cpu()
        return total / self.random_inputs

    def _path(self, ctx: Context) -> Tensor:
        """How far a constant gradient of 1 would move each client in a round, in units of the learning rate [N]."""
        steps = torch.tensor([ctx.local.schedule(size)[1] for size in ctx.sizes.tolist()])
        return ctx.local.path(steps) if self.bias_path == "effective" else steps.double()

    def _grouped(self, state: State, distributions: dict[str, Tensor], ctx: Context) -> State:
        """Cluster all clients by the first of `distributions`, and give each cluster a copy of the single model."""
        labels = self._clustered(next(iter(distributions.values())).numpy(), ctx.seed)
        models = tree.stack([tree.take(state["params"], 0)] * (int(labels.max()) + 1))
        return {**state, "params": models, "assigned": torch.from_numpy(labels), "distributions": distributions}

    def _clustered(self, points: np.ndarray, seed: int) -> np.ndarray:
        if not np.isfinite(points).all():  # diverged models: in one cluster they end the run, as in FedAvg
            return np.zeros(len(points), dtype=np.int64)
        clusters = self.clusters
        if clusters == "elbow":
            clusters = elbow(inertias(points, seed), most=max(1, len(points) // 4))
        if self.balanced:
            return balanced_k_means(points, clusters, seed, self.slack)
        return k_means(points, clusters, seed)

    def outcome(self, settled: State) -> dict[str, Any]:
        """With noise, also the guarantee of the Laplace mechanism on label distributions."""
        result = super().outcome(settled)
        if self.labels == "noisy":
            result["privacy"] = {"epsilon": self.epsilon, **_GUARANTEE}
        return result

    def artifacts(self, state: State, ctx: Context) -> dict[str, Any]:
        """The true beside the sent or inferred distributions (figure 12), and the elbow curve (appendix D.5)."""
        if "distributions" not in state:
            return super().artifacts(state, ctx)
        found = {name: value.cpu() for name, value in state["distributions"].items()}
        shown = {"true": ctx.world.label_shares, **found}
        columns = {
            f"{source}_{label}": values[:, label].numpy()
            for source, values in shown.items()
            for label in range(values.shape[1])
        }
        table = pd.DataFrame({"cluster": state["assigned"].numpy(), **columns}).rename_axis("client")
        artifacts = {
            **super().artifacts(state, ctx),
            "label_distributions": table, "label_distributions_first_clients": pictures.distributions(shown),
        }  # fmt: skip
        points = next(iter(found.values())).numpy()
        if np.isfinite(points).all():
            artifacts["elbow"] = pictures.elbow(inertias(points, ctx.seed), chosen=int(state["assigned"].max()) + 1)
        return artifacts
