"""FedCat (Hu et al., "Towards Accurate Federated Learning via Device Concatenation"), algorithms 1 to 3.

K copies of the global model each visit K devices, one per round, before they are merged (a cycle of K
rounds); one device is drawn from each of K random groups, with a preference for those that were drawn least.

Between merges the last merged model is evaluated, and clients use it, so the curve over communication rounds is
a staircase that rises every K rounds, as in the paper, which tests every 10 rounds with K = 10. The server optimizer
steps at a merge, along the merged copies' mean change. The ablations of the paper's section 4.3 are two switches:
`fedcat_gc` selects from groups but merges every round, `fedcat_dc` concatenates but selects as `selection` says,
uniformly by default. With neither, this is FedAvg.

The paper does not give lambda, epsilon or how counts start; here they count from 0 and the weight of a
device is 1 / sqrt(count + 1), ties broken at random.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import AtLeast, Within
from fedexp.engine import Context, State
from fedexp.errors import require
from fedexp.randomness import generator
from fedexp.selection.uniform import Uniform
from fedexp.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class FedCat(FedAvg):
    """epsilon: probability of the greedy choice (algorithm 3, line 3). cycles_per_grouping: lambda, the
    number of cycles after which devices are grouped anew."""

    epsilon: Annotated[float, Within(0, 1)] = 0.5
    cycles_per_grouping: Annotated[int, AtLeast(1)] = 1
    grouping: bool = True
    concatenation: bool = True

    @property
    def needs_all(self) -> str:
        return "each visit takes a copy of the model further" if self.concatenation else ""

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        require(
            not self.grouping or type(self.selection) is Uniform, "selection", type(self.selection).__name__,
            "FedCat draws devices from groups of its own; leave selection=uniform, or set algorithm.grouping=false",
        )  # fmt: skip
        require(
            not self.concatenation or self.selection.sampling != "poisson", "selection", "poisson",
            "FedCat has a copy for each of clients_per_round devices; use a selection of a fixed size, or "
            "algorithm.concatenation=false",
        )  # fmt: skip
        require(
            not self.concatenation or type(self.selection).question is Uniform.question,
            "selection", type(self.selection).__name__,
            "compares clients' losses on models that they received, but FedCat's copies pass from client to client; "
            "use selection=uniform",
        )  # fmt: skip

    def init(self, ctx: Context, params: Params) -> State:
        """counts [N, K]: how often a device was drawn at each round of a cycle; copies [K, ...]; examples [K]: how many
        examples each copy has been trained on in this cycle."""
        state, k = super().init(ctx, params), ctx.cohort
        if self.grouping:
            state["counts"] = torch.zeros(ctx.clients, k, dtype=torch.int64)
        if self.concatenation:
            state |= {"copies": tree.spread(params, k), "examples": torch.zeros(k, dtype=torch.int64)}
        return state

    def groups(self, number: int, ctx: Context, gen: Generator) -> Tensor:
        """The group of each device in a round (from 0): int64 [N], 0 to K - 1, sizes that differ by at most one.

        Drawn anew every lambda K rounds, as the first draw of that round. gen: the generator of round `number`.
        """
        begun = number - number % (self.cycles_per_grouping * ctx.cohort)
        draw = gen if begun == number else generator(ctx.seed, "round", begun)
        return (torch.arange(ctx.clients) % ctx.cohort)[torch.randperm(ctx.clients, generator=draw)]

    def select(self, state: State, ctx: Context, gen: Generator) -> Tensor:
        """The device that each copy visits: with grouping, copy i goes to the device of group (offset + i) mod K."""
        if not self.grouping:
            ids = super().select(state, ctx, gen)
            # In an order of their own, as full and clusamp give them, each copy would visit the same devices again.
            in_order = self.concatenation and type(self.selection) is not Uniform
            return ids[torch.randperm(len(ids), generator=gen)] if in_order else ids
        k, offset = ctx.cohort, state["round"] % ctx.cohort
        groups = self.groups(state["round"], ctx, gen)
        weight = (state["counts"][:, offset] + 1).double().rsqrt()
        chosen = torch.stack([self._from_group(groups == group, weight, gen) for group in range(k)])
        return chosen[(offset + torch.arange(k)) % k]

    def _from_group(self, member: Tensor, weight: Tensor, gen: Generator) -> Tensor:
        """One device of a group: with probability epsilon the one of largest weight (ties broken at random), otherwise
        one drawn in proportion to the weights."""
        members = member.nonzero().squeeze(1)
        weight = weight[members]
        if torch.rand((), generator=gen) < self.epsilon:
            weight = (weight == weight.max()).double()
        return members[torch.multinomial(weight, 1, generator=gen)[0]]

    def download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        """To each device the copy that visits it; in a cycle's first round all copies are the global model."""
        if not self.concatenation:
            return super().download(state, ids, ctx)
        if state["round"] % ctx.cohort > 0:
            return {"model": state["copies"]}
        # Real copies, not views of one row: every round's download then has one layout, and workers can be kept.
        return tree.apply(torch.clone, super().download(state, ids, ctx))

    def personal_download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        """The last merged model: the copies pass from device to device, and clients do not use them."""
        return super().download(state, ids, ctx)

    def combine(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Params:
        """With concatenation, the copies' mean change since they were last merged, weighted by the examples that they
        were trained on."""
        if not self.concatenation:
            return super().combine(state, ids, uploads, ctx)
        merged = tree.mean(state["copies"], state["examples"])
        return tree.apply(tree.change, merged, state["params"])

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        offset = state["round"] % ctx.cohort
        moved = state
        if self.grouping:
            counts = state["counts"].clone()
            # Those that were drawn but failed, too: otherwise they would be drawn more and more.
            everyone = len(ids) == ctx.cohort
            drawn = ids if everyone else self.select(state, ctx, generator(ctx.seed, "round", state["round"]))
            counts[drawn, offset] += 1
            moved = {**moved, "counts": counts}
        if self.concatenation:
            copies = tree.apply(torch.add, self.starts(state, ids, uploads, ctx), uploads["update"])
            seen = self.selection.weights(ids, ctx) + (state["examples"] if offset > 0 else 0)
            moved = {**moved, "copies": copies, "examples": seen}
            if offset < ctx.cohort - 1:
                return moved
        return super().aggregate(moved, ids, uploads, ctx, gen)
