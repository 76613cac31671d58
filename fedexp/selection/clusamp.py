"""CluSamp: clustered sampling by similarity (Fraboni et al., ICML 2021, algorithm 2).

Clients are clustered by their last update (Ward's method on the rows of the matrix of distances, as in the
published code). K distributions are made of the clusters such that each client's expected weight is n_k / n.
One client is drawn from each distribution; a client may be drawn twice (its two models are the same), and the
K updates count alike. `merge=examples` weighs them by n_k instead, which is biased.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from torch import Generator, Tensor

from fedexp import tree
from fedexp.config.bounds import OneOf
from fedexp.engine import Context, client_rows, ranks
from fedexp.errors import require
from fedexp.selection.uniform import Uniform
from fedexp.tree import Params, Tree

_MOST_CLIENTS = 2000  # one or two seconds per round; twice as many clients take eight times as long


@dataclass(frozen=True)
class CluSamp(Uniform):
    """distance: arccos (of the cosine; 0 if either client was never drawn), l1 or l2 (squared). merge: equal or
    examples."""

    merge: Annotated[str, OneOf("examples", "equal")] = "equal"
    distance: Annotated[str, OneOf("arccos", "l1", "l2")] = "arccos"

    ordinary = False

    def check(self, ctx: Context) -> None:
        require(
            ctx.clients <= _MOST_CLIENTS, "clients", ctx.clients,
            "clustered sampling compares every client with every other in each round, which takes N^3 operations; "
            f"use at most {_MOST_CLIENTS}, or selection=uniform",
        )  # fmt: skip
        largest, total = int(ctx.sizes.max()), int(ctx.sizes.sum())
        require(
            ctx.cohort * largest <= total, "clients_per_round", ctx.cohort,
            f"clustered sampling needs K n_k <= n for every client, and one has {largest} of {total} examples; "
            f"use at most {total // largest}",
        )  # fmt: skip

    def init(self, ctx: Context, params: Params) -> Tree:
        updates = client_rows.new(tree.apply(torch.zeros_like, params), ctx.clients, ctx.world.memory_device)
        return {"updates": updates, "distances": torch.zeros(ctx.clients, ctx.clients, dtype=torch.float64)}

    def select(self, memory: Tree, ctx: Context, gen: Generator) -> Tensor:
        groups = self.cluster(memory["distances"].numpy(), ctx)
        return torch.multinomial(self.distributions(groups, ctx, gen).double(), 1, generator=gen).squeeze(1)

    def learn(self, memory: Tree, ids: Tensor, uploads: Tree, ctx: Context) -> Tree:
        right = 'compares clients by their updates, and upload sends no "update"; use selection=uniform'
        require("update" in uploads, "selection", "CluSamp", right)
        last = {name: uploads["update"][name] for name in memory["updates"]["first"]}
        store = client_rows.put(memory["updates"], ids, last)
        rows = ranks.from_first(lambda: self.distances(ids, store), memory["distances"].device)
        distances = memory["distances"].clone()
        distances[ids], distances[:, ids] = rows, rows.T
        return {"updates": store, "distances": distances}

    def cluster(self, distances: np.ndarray, ctx: Context) -> list[Tensor]:
        """Client ids of each group, the smallest group first; no group holds more than 1 / K of the examples.

        Ward's tree is cut by the number of examples below a node instead of by its height.
        """
        n, sizes = ctx.clients, ctx.sizes.numpy()
        if n == 1:
            return [torch.zeros(1, dtype=torch.int64)]
        # Distances between the matrix's rows, not the matrix itself. They are made finite for a diverged run, which
        # ends at its next evaluation.
        links = linkage(pdist(np.nan_to_num(distances)), "ward")
        mass = sizes.tolist()
        for left, right, *_ in links:
            mass.append(mass[int(left)] + mass[int(right)])
        links[:, 2] = np.array(mass[n:], dtype=float) * ctx.cohort
        labels = fcluster(links, float(sizes.sum()), "distance")
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        groups.sort(key=lambda group: int(sizes[group].sum()))
        return [torch.from_numpy(group) for group in groups]

    def distributions(self, groups: list[Tensor], ctx: Context, gen: Generator) -> Tensor:
        """The probability of client i in distribution l, in units of 1 / n: int64 [K, N]; rows sum to n, columns to
        K n_i.

        Each of the K largest groups begins one distribution. The other groups' clients, shuffled within their group,
        fill the room that is left, one distribution after another; a client can be divided between two.
        """
        k, sizes = ctx.cohort, ctx.sizes
        shares = torch.zeros(k, len(sizes), dtype=torch.int64)
        for row, group in zip(shares, groups[-k:]):
            row[group] = k * sizes[group]
        room = (sizes.sum() - shares.sum(1)).tolist()
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

    def distances(self, ids: Tensor, updates: client_rows.Store) -> Tensor:
        """Distances of the updates of clients `ids` [K] from those of all N: float64 [K, N], on the CPU.

        A client's distance from itself is set to 0: rounding in the last digit of a cosine near 1 would give 2e-8.
        """
        place, rows = updates["place"], tree.take(updates["rows"], slice(updates["count"]))
        own = tree.take(rows, place[ids])
        pairs = ((a, F.pad(b, (0, 0, 0, 1))) for a, b in tree.columns(own, rows))  # with a row of zeros at the end
        by_part = (torch.cdist(a, b, p=1) for a, b in pairs)
        found = sum(by_part, torch.zeros(())) if self.distance == "l1" else self._by_product(pairs)
        found = found.cpu()[:, place]  # the last row, at place -1, stands for clients never drawn
        found[torch.arange(len(ids)), ids] = 0
        return found

    def _by_product(self, pairs: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
        product = own = other = torch.zeros((), dtype=torch.float64)
        for a, b in pairs:
            product, own, other = product + a @ b.T, own + a.square().sum(1), other + b.square().sum(1)
        if self.distance == "l2":
            return (own[:, None] + other - 2 * product).clamp_min(0)
        norms = (own[:, None] * other).sqrt()
        angle = torch.acos((product / norms.clamp_min(1e-300)).clamp(-1, 1))
        return torch.where(norms > 0, angle, 0.0)
