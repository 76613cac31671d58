"""Data sharing (Zhao et al. 2018, section 4.2): FedAvg with a little uniform data that all clients receive.

A hold-out H, equally large for every class, is set aside from the training examples; the clients' data D are
what remains. The server's G is part of H, uniform over classes, |G| = beta |D|. Once, before the first
round, each client receives its own random alpha |G| examples of G and the warm-up model, which the server
has trained on G. From then on it is FedAvg: n_k counts the shared examples too.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import Stage
from fedexp.algorithms.fedavg_pretrained import FedAvgPretrained
from fedexp.config.bounds import Above, Within
from fedexp.engine import Context, State
from fedexp.errors import require
from fedexp.randomness import generator
from fedexp.tree import Tree
from fedexp.world import World


@dataclass(frozen=True, kw_only=True)
class DataSharing(FedAvgPretrained):
    """holdout = |H| / all training examples. The pretraining_ keys concern the warm-up model."""

    holdout: Annotated[float, Within(0, 1, open_below=True, open_above=True)] = 0.2
    beta: Annotated[float, Above(0)] = 0.1
    alpha: Annotated[float, Within(0, 1)] = 1.0

    def stages(self, ctx: Context) -> list[Stage]:
        """Raises ConfigError for a hold-out or a beta that these clients' data do not allow."""
        world = ctx.world
        level = f"{float(world.noise.deviation.max()):g}" if world.noise else 0
        require(world.noise is None, "partition.noise", level, "must be 0: the shared examples belong to no client")
        held = self.hold_out(world, ctx.seed)
        own = [part[~torch.isin(part, held)] for part in world.rows.cpu().split(world.sizes.tolist())]
        require(
            all(map(len, own)), "algorithm.holdout", self.holdout,
            "leaves a client without examples of its own; use a smaller one",
        )  # fmt: skip
        shared = self._shared(held, sum(map(len, own)))
        received, draw = round(self.alpha * len(shared)), generator(ctx.seed, "sharing")
        parts = [torch.cat([mine, shared[torch.randperm(len(shared), generator=draw)[:received]]]) for mine in own]
        return self.pretraining(ctx, _holding(world, [shared]), _holding(world, parts))

    def hold_out(self, world: World, seed: int) -> Tensor:
        """H: ids [C, |H| / C], in random order for each class, on the CPU; without examples held out for evaluation."""
        labels, classes = world.y.cpu(), world.classes
        each, free = round(self.holdout * len(labels) / classes), torch.ones(len(labels), dtype=torch.bool)
        if world.held is not None:
            free[world.held.cpu()] = False
        ids = [(free & (labels == label)).nonzero().squeeze(1) for label in range(classes)]
        smallest = min(map(len, ids))
        require(
            1 <= each <= smallest, "algorithm.holdout", self.holdout,
            f"takes {each} examples of each class, of which the smallest has {smallest}",
        )  # fmt: skip
        draw = generator(seed, "hold-out")
        return torch.stack([own[torch.randperm(len(own), generator=draw)[:each]] for own in ids])

    def _shared(self, held: Tensor, examples: int) -> Tensor:
        """G: ids [|G|]. examples: |D|, how many examples the clients hold without H."""
        classes, most = held.shape
        each = round(self.beta * examples / classes)
        require(
            1 <= each <= most, "algorithm.beta", self.beta,
            f"{examples} examples of the clients and {held.numel()} held out allow from "
            f"{classes / examples:.2g} to {held.numel() / examples:.4g}; or change algorithm.holdout",
        )  # fmt: skip
        return held[:, :each].reshape(-1)

    def enter(self, state: State, ctx: Context) -> State:
        """All N clients receive, once, their shared examples as they are stored, and the warm-up model."""
        world = ctx.world
        held = self.hold_out(world, ctx.seed).to(world.device)
        rows = world.rows[torch.isin(world.rows, held)].view(world.clients, -1)  # those of H are the received ones
        sent: Tree = {"x": world.x[rows], "y": world.y[rows]} if rows.numel() else {}
        if state["pretraining"]["epochs"]:
            sent["model"] = tree.spread(state["params"], world.clients)
        self.survey(state, torch.arange(world.clients), sent, ctx)
        return super().enter(state, ctx)


def _holding(world: World, parts: list[Tensor]) -> World:
    """The world whose clients hold the examples `parts`."""
    return replace(world, rows=torch.cat(parts).to(world.device), sizes=torch.tensor([len(each) for each in parts]))
