"""CADIS (Nguyen et al., CCGrid 2023): clustered aggregation and knowledge-distilled regularisation.

Server, each round: the cosine similarity of the participants' changes of the head's weight matrix goes into a
running mean over the rounds in which two clients met (equations 11, 12); pairs that never met are estimated
through third clients (section III-C); min-max rescaling gives the Q-matrix; clients whose Q is at least epsilon
are similar, and those that share a similar client form a cluster (eq. 13); a client weighs n_i / M_i, M_i being
its cluster's participants (eq. 1, 2). Epsilon rises every round: epsilon <- min(epsilon growth^t, largest).

Clients: the global model teaches; KL between the distributions over the pairs of a batch that a kernel of the
features gives (eq. 18, 19), times `distillation` (lambda). The teacher evaluates (running statistics, no dropout).

Left open by the paper: gamma, the kernel, the rise of epsilon and the closure over shared neighbours are the
published code's. Rescaled similarities below 0 count as 0 (that code takes their absolute value).
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from scipy.sparse.csgraph import connected_components
from torch import Generator, Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Batch, Engine, Sent, Trained
from fedexp.engine.client import OneClient
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.tree import Params
from fedexp.world import World

_CHOICES = {
    "kernel": ("centred", "gaussian", "cosine"),
    "transitive": ("draw", "mean", "off"),
    "cluster_size": ("participants", "all"),
    "weights": ("examples", "clusters"),
}


@dataclass
class Cadis(FedAvg):
    """Fields: conf/algorithm/cadis.yaml says what each is and where its value comes from."""

    epsilon: float = 0.975
    epsilon_growth: float = 1.0005
    epsilon_largest: float = 0.985
    transitive: str = "draw"
    gamma: float = 0.0067
    cluster_size: str = "participants"
    weights: str = "examples"
    distillation: float = 1.0
    kernel: str = "centred"

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            require(value in known, f"algorithm.{name}", value, f"must be one of {', '.join(known)}")
        require(0 <= self.epsilon <= 1, "algorithm.epsilon", self.epsilon, "must be in [0, 1]")
        require(self.epsilon_growth >= 1, "algorithm.epsilon_growth", self.epsilon_growth, "must be at least 1")
        largest = self.epsilon_largest
        require(
            self.epsilon <= largest <= 1, "algorithm.epsilon_largest", largest,
            f"must be from algorithm.epsilon={self.epsilon} to 1",
        )  # fmt: skip
        require(self.gamma >= 0, "algorithm.gamma", self.gamma, "must be at least 0")
        require(self.distillation >= 0, "algorithm.distillation", self.distillation, "must be at least 0")

    def init(self, world: World, model: Model, params: Params) -> State:
        n = world.clients
        return {
            **super().init(world, model, params),
            "similarity": torch.eye(n, dtype=torch.float64),
            "meetings": torch.eye(n, dtype=torch.int64),
            "clusters": 0,
            "clustering_seconds": 0.0,
            "averaging_seconds": 0.0,
        }

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        features = model.encode(params, batch.x)
        logits = model.head(params, features)
        entropy = batch.mean(F.cross_entropy(logits, batch.y, reduction="none"))
        if self.distillation == 0:
            return entropy
        teacher = model.encode(sent.start, batch.x, training=False).detach()
        return entropy + self.distillation * distil(self.kernel, teacher, features, batch.weight)

    def round(self, state: State, world: World, engine: Engine, gen: Generator) -> State:
        """FedAvg's round with the clustering between training and merging; the server's two parts are timed."""
        ids = self.select(state, world, gen)
        sent = self.send(state, ids)
        trained = engine.train(self, state, ids, sent)
        began = _now(world.device)
        state = self.learn(state, ids, sent, trained, gen)
        clusters, shares = self.cluster(state, ids, trained.sizes)
        learnt = _now(world.device)
        state = {**self.merge(state, ids, sent, trained._replace(sizes=shares)), "round": state["round"] + 1}
        seconds = {"clustering_seconds": learnt - began, "averaging_seconds": _now(world.device) - learnt}
        return {**state, "clusters": clusters, **seconds}

    def learn(self, state: State, ids: Tensor, sent: Sent, trained: Trained, gen: Generator) -> State:
        """The similarity matrix after this round's meetings, and the estimates for pairs that never met."""
        change = (trained.params["head.weight"] - sent.start["head.weight"]).flatten(1).double().cpu()
        change = F.normalize(change)
        similarity, meetings = state["similarity"].clone(), state["meetings"].clone()
        pairs = ids[:, None], ids
        count = meetings[pairs]
        similarity[pairs] = (count * similarity[pairs] + change @ change.T) / (count + 1)
        meetings[pairs] = count + 1
        similarity.fill_diagonal_(1.0)
        if self.transitive != "off":
            similarity, meetings = self.infer(similarity, meetings, self.threshold(state["round"]), gen)
        return {**state, "similarity": similarity, "meetings": meetings}

    def infer(self, similarity: Tensor, meetings: Tensor, epsilon: float, gen: Generator) -> tuple[Tensor, Tensor]:
        """Pairs that never met, through all third clients that both met and whose estimate is sharp enough.

        A third client p says N(s_ip s_jp, sqrt((1 - s_ip^2)(1 - s_jp^2)) / 3); `draw` averages a number drawn
        from each (which is one normal number of their mean mean and deviation), `mean`, the published code's
        way, their means where above epsilon. An estimate counts as one meeting.
        """
        known = meetings > 0
        total, variance = torch.zeros_like(similarity), torch.zeros_like(similarity)
        voices = torch.zeros_like(meetings)
        blur = (1 - similarity.square()).clamp_min(0).sqrt()
        for p in range(len(similarity)):
            met = known[p].nonzero().squeeze(1)  # few, as long as most pairs never met
            pairs = met[:, None], met
            says = torch.outer(similarity[p, met], similarity[p, met])
            deviation = torch.outer(blur[p, met], blur[p, met]) / 3
            heard = ~known[pairs] & (deviation < self.gamma)
            if self.transitive == "mean":
                heard &= says > epsilon
            total[pairs] += says * heard
            variance[pairs] += deviation.square() * heard
            voices[pairs] += heard
        found, count = voices > 0, voices.clamp_min(1)
        estimate = total / count
        if self.transitive == "draw":
            noise = torch.randn(similarity.shape, generator=gen, dtype=torch.float64).triu(1)
            estimate = (estimate + (noise + noise.T) * variance.sqrt() / count).clamp(-1, 1)
        return torch.where(found, estimate, similarity), meetings + found

    def threshold(self, round: int) -> float:
        """Epsilon of a round: growth^t after round t compounds to growth^(t (t - 1) / 2)."""
        grown = math.log(self.epsilon_growth) * round * (round - 1) / 2
        return min(self.epsilon * math.exp(min(grown, 700.0)), self.epsilon_largest)  # no float beyond e^709

    def cluster(self, state: State, ids: Tensor, sizes: Tensor) -> tuple[int, Tensor]:
        """The number of clusters among the participants, and their weights n_i / M_i [K] (not normalised)."""
        similar = (quotients(state["similarity"], state["meetings"]) >= self.threshold(state["round"])).double()
        together = similar[:, ids].T @ similar > 0
        clusters, _ = connected_components(together[:, ids].numpy(), directed=False)
        members = (together[:, ids] if self.cluster_size == "participants" else together).sum(1).double()
        return int(clusters), (sizes.double() if self.weights == "examples" else 1.0) / members

    def observe(self, state: State, engine: Engine) -> dict[str, float]:
        """Clusters among the participants; mean squared error of Q off the diagonal; this round's server time."""
        error = (quotients(state["similarity"], state["meetings"]) - label_similarity(engine.world)).square()
        pairs = ~torch.eye(len(error), dtype=torch.bool)
        return {
            "clusters": state["clusters"],
            "similarity_mse": float(error[pairs].mean()) if pairs.any() else 0.0,
            "clustering_seconds": round(state["clustering_seconds"], 6),
            "averaging_seconds": round(state["averaging_seconds"], 6),
        }

    def exhibits(self, state: State, engine: Engine) -> dict[str, Any]:
        """The Q-matrix beside the true one as heat maps, and as a table."""
        q, true = quotients(state["similarity"], state["meetings"]), label_similarity(engine.world)
        figure = Figure(figsize=(11, 5), layout="constrained")
        titles = (f"Q-matrix after round {state['round']}", "cosine of the label distributions")
        for axes, matrix, title in zip(figure.subplots(1, 2), (q, true), titles):
            picture = axes.imshow(matrix.numpy(), vmin=0, vmax=1)
            axes.set(title=title, xlabel="client", ylabel="client")
        figure.colorbar(picture, ax=figure.axes)
        table = pd.DataFrame(np.round(q.numpy(), 6)).rename_axis("client")
        return {f"similarity_round{state['round']:04d}": figure, "similarity": table}


def quotients(similarity: Tensor, meetings: Tensor) -> Tensor:
    """The Q-matrix [N, N]: known positive similarities rescaled to [0, 1]; all others, known or not, 0."""
    counts = (meetings > 0) & (similarity > 0)
    least = similarity[counts].min()
    span = 1 - least
    rescaled = (similarity - least) / span if span > 0 else torch.ones_like(similarity)
    return torch.where(counts, rescaled, 0.0).clamp(0, 1)


def label_similarity(world: World) -> Tensor:
    """Cosine of the clients' label distributions [N, N]."""
    unit = F.normalize(world.label_counts.double())
    return unit @ unit.T


def distil(kernel: str, teacher: Tensor, student: Tensor, weight: Tensor) -> Tensor:
    """KL(teacher || student) of the pairwise distributions of features [B, d] over a batch, padding left out.

    centred: exp(-(d - mean d)^2 / 2(var d + .001)) of the distances d, KL summed over the batch (the published
    code's, which made the tables); gaussian: exp(-d^2 / 2(var d + .001)) with var d held fixed, summed;
    cosine: (cos + 1) / 2, the mean over pairs (Passalis and Tefas). Rows are normalised; an example is no
    neighbour of itself.
    """
    pairs = (weight[:, None] * weight) * (1 - torch.eye(len(weight), dtype=weight.dtype, device=weight.device))
    p, q = (_log_neighbours(kernel, features.to(weight.dtype), pairs) for features in (teacher, student))
    divergence = (pairs * p.exp() * (p - q)).sum()
    return divergence / pairs.sum().clamp_min(1) if kernel == "cosine" else divergence


def _log_neighbours(kernel: str, features: Tensor, pairs: Tensor) -> Tensor:
    """log p(j | i) [B, B] under the kernel; of no meaning where `pairs` is 0."""
    if kernel == "cosine":
        unit = features * (features.square().sum(1, keepdim=True) + 1e-12).rsqrt()
        logs = ((unit @ unit.T + 1) / 2 + 1e-7).log()
    else:
        squares = (features[:, None] - features).square().sum(-1)
        apart = squares > 0  # the square root has no gradient at 0, where two examples have the same features
        distance = torch.where(apart, torch.where(apart, squares, 1.0).sqrt(), 0.0)
        count = pairs.sum().clamp_min(1)
        mean = (distance * pairs).sum() / count
        variance = ((distance - mean).square() * pairs).sum() / count + 0.001
        centred = kernel == "centred"
        logs = -(distance - mean).square() / (2 * variance) if centred else -distance.square() / (2 * variance.detach())
    return torch.where(pairs > 0, logs, -1e4).log_softmax(1)


def _now(device: torch.device) -> float:
    """Seconds, after the device has done what it was asked before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
