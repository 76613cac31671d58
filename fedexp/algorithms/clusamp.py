"""CluSamp: clustered sampling by similarity (Fraboni et al., ICML 2021, algorithm 2).

Clients are clustered by their last update (Ward's method on the rows of the matrix of distances, as in the
published code); K distributions are made of the clusters so that each client's expected weight is n_k / n;
one client is drawn from each, so that a client may be drawn twice (its two models are the same), and the K
models count alike. `weights=examples` merges by n_k instead, which is biased.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Sent, Trained
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.tree import Params, Stack
from fedexp.world import World


@dataclass
class CluSamp(FedAvg):
    """distance: arccos (of the cosine; 0 to a client never drawn), l1 or l2 (squared). weights: equal or examples."""

    distance: str = "arccos"
    weights: str = "equal"

    def __post_init__(self) -> None:
        kinds = ("arccos", "l1", "l2")
        require(self.distance in kinds, "algorithm.distance", self.distance, "must be arccos, l1 or l2")
        ways = ("equal", "examples")
        require(self.weights in ways, "algorithm.weights", self.weights, "must be equal or examples")

    def check(self, world: World) -> None:
        largest, total = int(world.sizes.max()), int(world.sizes.sum())
        require(
            self.clients_per_round * largest <= total, "clients_per_round", self.clients_per_round,
            f"clustered sampling needs K n_k <= n for every client, and one has {largest} of {total} examples; "
            f"use at most {total // largest}",
        )  # fmt: skip

    def init(self, world: World, model: Model, params: Params) -> State:
        n = world.clients
        updates = world.client_memory({name: params[name] for name in model.weights})
        distances = torch.zeros(n, n, dtype=torch.float64)
        return {**super().init(world, model, params), "updates": updates, "distances": distances}

    def select(self, state: State, world: World, gen: Generator) -> Tensor:
        groups = self.cluster(state["distances"].numpy(), world.sizes.numpy())
        return torch.multinomial(self.distributions(groups, world.sizes, gen).double(), 1, generator=gen).squeeze(1)

    def cluster(self, distances: np.ndarray, sizes: np.ndarray) -> list[Tensor]:
        """Client ids of each group, the smallest group first: no group holds more than 1 / K of the examples.

        Ward's tree is cut by the examples below a node instead of by its height.
        """
        n = len(sizes)
        if n == 1:
            return [torch.zeros(1, dtype=torch.int64)]
        # Distances between rows, not the matrix itself; after a divergence, which the next evaluation ends, finite.
        links = linkage(pdist(np.nan_to_num(distances)), "ward")
        mass = [*sizes.tolist()]
        for left, right, *_ in links:
            mass.append(mass[int(left)] + mass[int(right)])
        links[:, 2] = np.array(mass[n:], dtype=float) * self.clients_per_round
        labels = fcluster(links, float(sizes.sum()), "distance")
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        groups.sort(key=lambda group: int(sizes[group].sum()))
        return [torch.from_numpy(group) for group in groups]

    def distributions(self, groups: list[Tensor], sizes: Tensor, gen: Generator) -> Tensor:
        """How many n-ths of distribution l client i gets: int64 [K, N], rows sum to n, columns to K n_i.

        The K largest groups found one distribution each; the others' clients, shuffled within their group, are
        poured into what room is left, one distribution after another, a client into two if it must be.
        """
        k, n = self.clients_per_round, int(sizes.sum())
        shares = torch.zeros(k, len(sizes), dtype=torch.int64)
        for row, group in zip(shares, groups[-k:]):
            row[group] = k * sizes[group]
        room = (n - shares.sum(1)).tolist()
        row = 0
        for group in groups[:-k]:
            for client in group[torch.randperm(len(group), generator=gen)].tolist():
                left = k * int(sizes[client])
                while left:
                    part = min(left, room[row])
                    shares[row, client] += part
                    room[row] -= part
                    left -= part
                    row += room[row] == 0 and row < k - 1
        return shares

    def merge(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> State:
        updates = {name: trained.params[name] - sent.start[name] for name in state["updates"]}
        tree.put(state["updates"], ids, updates)
        rows = self.distances(tree.take(state["updates"], ids), state["updates"])
        distances = state["distances"].clone()
        distances[ids], distances[:, ids] = rows, rows.T
        weights = torch.ones(len(ids)) if self.weights == "equal" else trained.sizes
        return {**state, "params": tree.mean(trained.params, weights), "distances": distances}

    def distances(self, some: Stack, every: Stack) -> Tensor:
        """Distances [K, N] of K updates from all N."""
        pairs = [(some[name].flatten(1), every[name].flatten(1)) for name in some]
        if self.distance == "l1":
            return sum(torch.cdist(a, b, p=1) for a, b in pairs).double().cpu()
        product = sum(a @ b.T for a, b in pairs).double()
        own, other = (sum(leaf.square().sum(1) for leaf in side).double() for side in zip(*pairs))
        squares = own[:, None] + other
        if self.distance == "l2":
            return (squares - 2 * product).clamp_min(0).cpu()
        norms = (own[:, None] * other).sqrt()
        angle = torch.acos((product / norms.clamp_min(1e-300)).clamp(-1, 1))
        return torch.where(norms > 0, angle, 0.0).cpu()
