"""CADIS (Nguyen et al., CCGrid 2023): clustered aggregation and knowledge-distilled regularisation.

Server, each round: the cosine similarity of the participants' changes of the head's weight matrix goes into a
running mean over the rounds in which two clients met (equations 11, 12); pairs that never met are estimated
through third clients (section III-C). Min-max rescaling of all known similarities, negative ones too, gives the
Q-matrix (section III-B2); `rescaling=positive` takes positive ones alone, as the published code does, which on
clean clusters leaves hardly any pair similar. Clients whose Q is at least epsilon are similar (eq. 13); with
`closure`, on as in the published code, so are those that share a similar client. A client weighs n_i / M_i, M_i
being the participants similar to it, itself included (eq. 1, 2). Epsilon rises every round:
epsilon <- min(epsilon growth^t, largest).

Clients: the global model is the teacher. The KL divergence between the two models' distributions over the pairs of a
batch, which a kernel of the features gives (eq. 18, 19), times `distillation` (lambda), is added to the loss. The
teacher is in evaluation mode (running statistics, no dropout).

Gamma, the kernel and the rise of epsilon are left open by the paper; by default they are the published code's.
Under rescaling=positive, similarities that are not positive count as 0 (that code takes their absolute value).
"""

import math
import time
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix, identity
from scipy.sparse.csgraph import connected_components
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms import pairs
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.pairwise_distillation import KERNELS, distil
from fedexp.config.bounds import AtLeast, OneOf, Within
from fedexp.engine import Batch, Client, Context, State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.record import pictures
from fedexp.tree import Params, Tree
from fedexp.world import World

_MOST_PAIRS = 50_000_000  # all pairs of 10,000 clients: some gigabytes
_TOGETHER = 2000  # clients up to which random numbers are drawn for all pairs at once, needed or not
_SHOWN = 1000  # clients up to which the whole Q-matrix is drawn and written
_AT_ONCE = 2**20  # pairs whose labels are compared together


@dataclass(frozen=True, kw_only=True)
class Cadis(FedAvg):
    """conf/algorithm/cadis.yaml explains each field and the source of its value."""

    epsilon: Annotated[float, Within(0, 1)] = 0.975
    epsilon_growth: Annotated[float, AtLeast(1)] = 1.0005
    epsilon_largest: Annotated[float, Within(0, 1)] = 0.985
    transitive: Annotated[str, OneOf("draw", "mean", "off")] = "draw"
    gamma: Annotated[float, AtLeast(0)] = 0.0067
    rescaling: Annotated[str, OneOf("all", "positive")] = "all"
    closure: bool = True
    cluster_size: Annotated[str, OneOf("participants", "all")] = "participants"
    weights: Annotated[str, OneOf("examples", "clusters")] = "examples"
    distillation: Annotated[float, AtLeast(0)] = 1.0
    kernel: Annotated[str, OneOf(*KERNELS)] = "centred"

    own_weights = True
    needs_head = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.epsilon <= self.epsilon_largest, "algorithm.epsilon_largest", self.epsilon_largest,
            f"must be at least algorithm.epsilon={self.epsilon}",
        )  # fmt: skip

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        drawn = min(ctx.clients, ctx.rounds * ctx.cohort)  # at most this many clients ever take part
        possible = drawn * (drawn - 1) // 2
        if self.transitive == "off":
            possible = min(possible, ctx.rounds * ctx.cohort * (ctx.cohort - 1) // 2)
        require(
            possible <= _MOST_PAIRS, "clients", ctx.clients,
            f"CADIS remembers a similarity for each pair of clients that it comes to know, in {ctx.rounds} rounds of "
            f"{ctx.cohort} up to {possible:,} pairs, and has room for {_MOST_PAIRS:,}; use fewer clients, fewer per "
            "round, or fewer rounds",
        )  # fmt: skip

    def init(self, ctx: Context, params: Params) -> State:
        return {
            **super().init(ctx, params),
            "pairs": pairs.new(similarity=torch.float64, meetings=torch.int64),
            "touched": torch.empty(0, dtype=torch.int64),
            "clusters": 0,
            "clustering_seconds": 0.0,
            "averaging_seconds": 0.0,
        }

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        features = model.encode(params, batch.x)
        logits = model.head(params, features)
        entropy = batch.cross_entropy(logits)
        if self.distillation == 0:
            return entropy
        teacher = model.encode(client.start, batch.x, training=False).detach()
        return entropy + self.distillation * distil(self.kernel, teacher, features, batch.weight)

    def combine(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Params:
        return tree.mean(uploads["update"], state["shares"])

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        """Clustering, then FedAvg's aggregation; both are timed. "shares": the weights of this round's cohort [K]."""
        began = _now(ctx.world.device)
        state = self.learn(state, ids, uploads["update"]["head.weight"], ctx.clients, gen)
        clusters, shares = self.cluster(state, ids, ctx.sizes[ids], ctx.clients)
        learnt = _now(ctx.world.device)
        state = super().aggregate({**state, "clusters": clusters, "shares": shares}, ids, uploads, ctx, gen)
        seconds = {"clustering_seconds": learnt - began, "averaging_seconds": _now(ctx.world.device) - learnt}
        return {**state, **seconds}

    def learn(self, state: State, ids: Tensor, change: Tensor, clients: int, gen: Generator) -> State:
        """The State after this round's meetings: in "pairs" the known similarities, with estimates for pairs that never
        met (a client's similarity to itself is 1 and not stored); in "touched" the clients of the last estimates [n].

        change: each participant's change of the head's weight matrix [K, C, d].
        """
        change = F.normalize(change.flatten(1).double().cpu())
        order = ids.argsort()
        rows, columns = order[torch.triu_indices(len(ids), len(ids), 1)]
        met = pairs.pair(ids[rows], ids[columns])
        known = {name: leaf.clone() for name, leaf in pairs.including(state["pairs"], met).items()}
        place = torch.searchsorted(known["pair"], met)
        count, before = known["meetings"][place], known["similarity"][place]
        known["similarity"][place] = (count * before + (change @ change.T)[rows, columns]) / (count + 1)
        known["meetings"][place] = count + 1
        touched = torch.cat([state["touched"], ids]).unique()
        if self.transitive != "off":
            known, touched = self.infer(known, touched, clients, self.threshold(state["round"]), gen)
        return {**state, "pairs": known, "touched": touched}

    def infer(
        self, known: pairs.Store, touched: Tensor, clients: int, epsilon: float, gen: Generator
    ) -> tuple[pairs.Store, Tensor]:
        """Estimate the similarity of pairs that never met, through all third clients that both have met and whose
        estimate is sharp enough; returns the known pairs, these included, and the clients of the estimated pairs [n].

        The estimate through a third client p is N(s_ip s_jp, sqrt((1 - s_ip^2)(1 - s_jp^2)) / 3). `draw` averages one
        number drawn from each (drawn as one normal number of that mean and deviation); `mean`, as in the published
        code, averages the means that are above epsilon. An estimate counts as one meeting.

        touched: the third clients to use, ascending. The others' similarities have not changed since they were last
        used, so they give nothing new: their estimates are known, and epsilon never falls.
        """
        least = epsilon if self.transitive == "mean" else -math.inf
        said = pairs.through_third_clients(known, touched, clients, self.gamma, least)
        count, found = said["voices"], pairs.ids(said["pair"])
        estimate = said["total"] / count
        if self.transitive == "draw":
            noise = _one_a_pair(*found, clients, gen)
            estimate = (estimate + noise * said["variance"].sqrt() / count).clamp(-1, 1)
        known = pairs.including(known, said["pair"])
        place = torch.searchsorted(known["pair"], said["pair"])
        known["similarity"][place], known["meetings"][place] = estimate, torch.ones_like(count)
        return known, torch.cat(found).unique()

    def rescaled(self, known: pairs.Store) -> Tensor:
        """The Q-matrix's entries of these pairs [P]: known similarities rescaled to [0, 1], the smallest of all to 0.

        A similarity that is not a number (from a diverged model) counts as unknown, and Q is 0 for unknown pairs. On
        the diagonal Q is 1.
        """
        similarity = known["similarity"]
        kept = similarity.isfinite()
        if self.rescaling == "positive":
            kept &= similarity > 0
        least = similarity[kept].min().clamp_max(1) if kept.any() else torch.tensor(1.0)
        span = 1 - least
        values = (similarity - least) / span if span > 0 else torch.ones_like(similarity)
        return torch.where(kept, values, 0.0).clamp(0, 1)

    def quotients(self, state: State, clients: int) -> Tensor:
        """The whole Q-matrix [N, N]."""
        found = pairs.matrix(state["pairs"]["pair"], self.rescaled(state["pairs"]), clients).toarray()
        return torch.from_numpy(found).fill_diagonal_(1)

    def threshold(self, number: int) -> float:
        """Epsilon of a round: growth^t after round t compounds to growth^(t (t - 1) / 2)."""
        grown = math.log(self.epsilon_growth) * number * (number - 1) / 2
        return min(self.epsilon * math.exp(min(grown, 700.0)), self.epsilon_largest)  # no float beyond e^709

    def cluster(self, state: State, ids: Tensor, sizes: Tensor, clients: int) -> tuple[int, Tensor]:
        """The number of clusters among the participants, and their weights n_i / M_i [K] (not normalised).

        Clusters are the connected components of the similarity graph; M_i counts only clients that are similar to i.
        """
        similar = self._similar(state, clients)
        together = similar[ids.numpy()]
        if self.closure:
            together = together @ similar
        among = together[:, ids.numpy()]
        count, _ = connected_components(among, directed=False)
        members = torch.from_numpy((among if self.cluster_size == "participants" else together).getnnz(1))
        if self.threshold(state["round"]) == 0:  # then unknown pairs are similar as well
            count, members = 1, torch.full_like(ids, len(ids) if self.cluster_size == "participants" else clients)
        return int(count), (sizes.double() if self.weights == "examples" else 1.0) / members.double()

    def _similar(self, state: State, clients: int) -> csr_matrix:
        """Which clients are similar, each to itself included: sparse [N, N], with entries at similar pairs."""
        known = state["pairs"]
        similar = known["pair"][self.rescaled(known) >= self.threshold(state["round"])]
        return pairs.matrix(similar, torch.ones(len(similar)), clients) + identity(clients, format="csr")

    def metrics(self, state: State, ctx: Context) -> dict[str, float]:
        """Clusters among the participants; mean squared error of Q off the diagonal; this round's server time."""
        return {
            "clusters": state["clusters"],
            "similarity_mse": self._error(state["pairs"], ctx.world) / max(1, ctx.clients * (ctx.clients - 1)),
            "clustering_seconds": round(state["clustering_seconds"], 6),
            "averaging_seconds": round(state["averaging_seconds"], 6),
        }

    def _error(self, known: pairs.Store, world: World) -> float:
        """Sum of (q - t)^2 off the diagonal, t being the cosine of the label distributions.

        Most q are 0, so only the other pairs are visited: the sum of t^2 over all pairs, the squared norm of U U^T for
        unit vectors U [N, C], equals that of U^T U [C, C].
        """
        unit = F.normalize(world.label_counts.double())
        total = (unit.T @ unit).square().sum() - unit.square().sum(1).square().sum()
        for pair, q in zip(known["pair"].split(_AT_ONCE), self.rescaled(known).split(_AT_ONCE)):
            first, second = pairs.ids(pair)
            total += 2 * (q * (q - 2 * (unit[first] * unit[second]).sum(1))).sum()
        return max(0.0, float(total))

    def artifacts(self, state: State, ctx: Context) -> dict[str, Any]:
        """Heat maps of the Q-matrix and the true one, and the former as a table; for many clients, only a table of the
        known pairs."""
        if ctx.clients > _SHOWN:
            first, second = pairs.ids(state["pairs"]["pair"])
            values = np.round(self.rescaled(state["pairs"]).numpy(), 6)
            pairwise = pd.DataFrame({"client": first, "other": second, "similarity": values}).set_index("client")
            return super().artifacts(state, ctx) | {"similarity": pairwise}
        q, true = self.quotients(state, ctx.clients), label_similarity(ctx.world)
        figure = pictures.blank(11, 5)
        titles = (f"Q-matrix after round {state['round']}", "cosine of the label distributions")
        for axes, matrix, title in zip(figure.subplots(1, 2), (q, true), titles):
            picture = axes.imshow(matrix.numpy(), vmin=0, vmax=1)
            axes.set(title=title, xlabel="client", ylabel="client")
            axes.locator_params(integer=True)
        figure.colorbar(picture, ax=figure.axes)
        table = pd.DataFrame(np.round(q.numpy(), 6)).rename_axis("client")
        found = {f"similarity_round{state['round']:04d}": figure, "similarity": table}
        return super().artifacts(state, ctx) | found


def label_similarity(world: World) -> Tensor:
    """Cosine of the clients' label distributions [N, N]."""
    unit = F.normalize(world.label_counts.double())
    return unit @ unit.T


def _one_a_pair(first: Tensor, second: Tensor, clients: int, gen: Generator) -> Tensor:
    """A standard normal number for each pair [P].

    For few clients a whole matrix is drawn, and most of its entries stay unused: which number a pair gets then does
    not depend on which other pairs there are.
    """
    if clients <= _TOGETHER:
        return torch.randn(clients, clients, generator=gen, dtype=torch.float64)[first, second]
    return torch.randn(len(first), generator=gen, dtype=torch.float64)


def _now(device: torch.device) -> float:
    """Seconds, read after the device has finished its pending work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
