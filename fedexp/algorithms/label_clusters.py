"""Clusters of clients with similar label distributions (FedConcat, stages 1 and 2).

Where the distributions come from is `labels`:
- counted: clients send theirs, counts / n_k (stage 1-A).
- noisy: the same with Laplace noise of scale 1 / epsilon on each entry (appendix B).
- random_inputs: the server's mean softmax output of each client's first model on random images (stage 1-B, ID).
- bias: from how the head's bias moved in the first round, (b_S - b_0) / (S lr) + softmax(b_0) (IB; Ramakrishna
  and Dan 2022). bias_published: softmax(b_S), what FedConcat's published code clusters by, because its b_0
  changes along with the model.
For the last three all clients train the initial model in the first round, which is then merged by cluster:
it counts as an encoder round. FedAvg within each cluster follows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from fedexp import pictures, tree
from fedexp.algorithms.clustered import Clustered
from fedexp.clustering import balanced_k_means, elbow, inertias, k_means
from fedexp.engine import Engine, Trained
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.measure.skew import shares
from fedexp.models import Model
from fedexp.randomness import generator, numpy_generator
from fedexp.tree import Params
from fedexp.world import World

_SENT = ("counted", "noisy")
_INFERRED = ("random_inputs", "bias", "bias_published")
_CHUNK = 1000  # random images in one forward pass


@dataclass
class LabelClusters(Clustered):
    """clusters: K, or elbow. balanced: no cluster above its share N / K (times slack). random_inputs: how many.
    bias_path: published divides by S lr; effective by S lr / (1 - momentum), momentum SGD's longer path."""

    clusters: int | str = 5
    labels: str = "counted"
    balanced: bool = False
    slack: float = 1.0
    epsilon: float = 5.0
    random_inputs: int = 10_000
    bias_path: str = "published"

    def __post_init__(self) -> None:
        if self.clusters != "elbow":
            super().__post_init__()
        known = (*_SENT, *_INFERRED)
        require(self.labels in known, "algorithm.labels", self.labels, f"must be one of {', '.join(known)}")
        require(self.slack >= 1, "algorithm.slack", self.slack, "must be at least 1")
        require(self.epsilon > 0, "algorithm.epsilon", self.epsilon, "must be above 0; for no noise: labels=counted")
        inputs = self.random_inputs
        require(inputs >= 1, "algorithm.random_inputs", inputs, "must be at least 1")
        paths = ("published", "effective")
        require(self.bias_path in paths, "algorithm.bias_path", self.bias_path, "must be published or effective")

    def check(self, world: World) -> None:
        if self.clusters != "elbow":
            super().check(world)

    def init(self, world: World, model: Model, params: Params) -> State:
        """One model, which the first round multiplies by the number of clusters."""
        if self.labels.startswith("bias"):
            require("head.bias" in params, "algorithm.labels", self.labels, "this model's head has no bias")
        models = tree.apply(torch.clone, tree.spread(params, 1))
        return {"round": 0, "params": models, "assigned": torch.zeros(world.clients, dtype=torch.int64)}

    def round(self, state: State, world: World, engine: Engine, gen: Generator) -> State:
        if state["round"] > 0:
            return super().round(state, world, engine, gen)
        everyone = torch.arange(world.clients)
        if self.labels in _SENT:
            sent = self._distributions(world, engine.seed)
            engine.exchange(everyone, up={"label_distribution": sent.float()})
            return super().round(self._group(state, {self.labels: sent}, engine), world, engine, gen)
        start = self.send(state, everyone)
        trained = engine.train(self, state, everyone, start)
        state = self._group(state, self._infer(trained, start.start, engine), engine)
        return {**self.merge(state, everyone, start, trained), "round": 1}

    def _distributions(self, world: World, seed: int) -> Tensor:
        """What clients send: their label distributions [N, C], with each client's own noise."""
        own = shares(world.label_counts)
        if self.labels == "counted":
            return own
        draws = [
            numpy_generator(seed, "label noise", client).laplace(0, 1 / self.epsilon, world.classes)
            for client in range(world.clients)
        ]
        return own + torch.from_numpy(np.stack(draws))

    def _infer(self, trained: Trained, start: tree.Stack, engine: Engine) -> dict[str, Tensor]:
        """Label distributions [N, C] from the first round's models; the one to cluster by comes first."""
        found = {}
        if self.labels == "random_inputs":
            found["random_inputs"] = self._answers(trained.params, engine)
        if "head.bias" in start:
            found["bias"] = self._drift(trained, start["head.bias"].double().cpu())
            found["bias_published"] = trained.params["head.bias"].double().cpu().softmax(1)
        return {self.labels: found.pop(self.labels), **found}

    @torch.no_grad()
    def _answers(self, models: tree.Stack, engine: Engine) -> Tensor:
        """Mean softmax [N, C] of each model on inputs uniform in [0, 1), as the model reads them (eq. 3)."""
        world, clients = engine.world, tree.unstack(models)
        total = torch.zeros(len(clients), world.classes, dtype=torch.float64)
        for start in range(0, self.random_inputs, _CHUNK):
            count = min(_CHUNK, self.random_inputs - start)
            draw = generator(engine.seed, "random inputs", start)
            x = torch.rand(count, *world.shape, generator=draw).to(world.device, world.dtype)
            for client, params in enumerate(clients):
                total[client] += engine.model(params, x, training=False).softmax(1).sum(0).cpu()
        return total / self.random_inputs

    def _drift(self, trained: Trained, before: Tensor) -> Tensor:
        after = trained.params["head.bias"].double().cpu()
        path = trained.steps.double() * self.local.rate(0)
        if self.bias_path == "effective":
            path = path / (1 - self.local.momentum)
        return (after - before) / path[:, None] + before.softmax(1)

    def _group(self, state: State, distributions: dict[str, Tensor], engine: Engine) -> State:
        """Assign every client by the first of `distributions`; a copy of the one model for each cluster."""
        labels = self._clustered(next(iter(distributions.values())).numpy(), engine.seed)
        start = tree.take(state["params"], 0)
        models = tree.apply(torch.clone, tree.spread(start, int(labels.max()) + 1))
        return {
            **state, "params": models, "assigned": torch.from_numpy(labels), "distributions": distributions,
        }  # fmt: skip

    def _clustered(self, points: np.ndarray, seed: int) -> np.ndarray:
        if not np.isfinite(points).all():  # of diverged models: in one cluster they end the run, as they do in FedAvg
            return np.zeros(len(points), dtype=np.int64)
        clusters = self.clusters
        if clusters == "elbow":
            clusters = elbow(inertias(points, seed), most=max(1, len(points) // 4))
        if self.balanced:
            return balanced_k_means(points, clusters, seed, self.slack)
        return k_means(points, clusters, seed)

    def outcome(self, settled: State) -> dict[str, Any]:
        result = super().outcome(settled)
        return result | {"privacy": privacy(self.epsilon)} if self.labels == "noisy" else result

    def exhibits(self, state: State, engine: Engine) -> dict[str, Any]:
        """True beside sent or inferred distributions (figure 12), and the elbow curve (appendix D.5)."""
        if "distributions" not in state:
            return {}
        found = {name: value.cpu() for name, value in state["distributions"].items()}
        shown = {"true": shares(engine.world.label_counts), **found}
        columns = {
            f"{source}_{label}": values[:, label].numpy()
            for source, values in shown.items()
            for label in range(values.shape[1])
        }
        table = pd.DataFrame({"cluster": state["assigned"].numpy(), **columns}).rename_axis("client")
        exhibits = {"label_distributions": table, "label_distributions_first_clients": pictures.distributions(shown)}
        points = next(iter(found.values())).numpy()
        if np.isfinite(points).all():
            curve = inertias(points, engine.seed)
            exhibits["elbow"] = pictures.elbow(curve, chosen=int(state["assigned"].max()) + 1)
        return exhibits


def privacy(epsilon: float) -> dict[str, Any]:
    """What the Laplace mechanism on label distributions promises, for result.json."""
    return {
        "epsilon": epsilon,
        "mechanism": "Laplace(0, 1/epsilon) on each entry of a client's label distribution, sent once; sensitivity 1",
        "protects": "the label distribution that a client sends, against adding or removing one of its examples",
        "does_not_protect": "models sent in every round, numbers of examples, and which cluster's model a client "
        "gets; and noise drawn from a known seed can be subtracted again, so this is a simulation",
    }
