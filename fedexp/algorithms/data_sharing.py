"""Data sharing (Zhao et al. 2018, section 4.2): FedAvg with a little uniform data that all clients receive.

A hold-out H, as large for every class, is set aside from the training examples; the clients' data D are
what remains. The server's G is part of H, uniform over classes, |G| = beta |D|. Once, before the first
round, each client receives its own random alpha |G| examples of G and the warm-up model, which the server
has trained on G. From then on it is FedAvg: n_k counts the shared examples too.
"""

from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg_pretrained import FedAvgPretrained
from fedexp.engine import Engine
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.randomness import generator
from fedexp.world import World


@dataclass
class DataSharing(FedAvgPretrained):
    """seed: the run's. holdout = |H| / all training examples. The pretraining_ keys concern the warm-up model."""

    seed: int = 0
    holdout: float = 0.2
    beta: float = 0.1
    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.holdout < 1, "algorithm.holdout", self.holdout, "must be in (0, 1)")
        require(0 < self.beta < inf, "algorithm.beta", self.beta, "must be above 0 and finite")
        require(0 <= self.alpha <= 1, "algorithm.alpha", self.alpha, "must be in [0, 1]")

    def adapt(self, world: World) -> World:
        """Each client's own examples without H, then its part of G."""
        labels, rows = world.y.cpu(), world.rows.cpu()
        held = self._hold_out(labels, world.classes)
        own = [part[~torch.isin(part, held)] for part in rows.split(world.sizes.tolist())]
        require(
            all(map(len, own)), "algorithm.holdout", self.holdout,
            "leaves a client without examples of its own; use a smaller one",
        )  # fmt: skip
        examples = sum(map(len, own))
        shared = round(self.beta * examples / world.classes)
        require(
            1 <= shared <= held.shape[1], "algorithm.beta", self.beta,
            f"{examples} examples of the clients and {held.numel()} held out allow from "
            f"{world.classes / examples:.2g} to {held.numel() / examples:.4g}; or change algorithm.holdout",
        )  # fmt: skip
        self.shared = held[:, :shared].reshape(-1)  # G; made anew whenever a run starts or is resumed
        part = round(self.alpha * len(self.shared))
        draw = generator(self.seed, "sharing")
        parts = [
            torch.cat([mine, self.shared[torch.randperm(len(self.shared), generator=draw)[:part]]]) for mine in own
        ]
        sizes = torch.tensor([len(each) for each in parts])
        return replace(world, rows=torch.cat(parts).to(world.device), sizes=sizes)

    def _hold_out(self, labels: Tensor, classes: int) -> Tensor:
        """H: ids [C, |H| / C], in random order for each class."""
        each = round(self.holdout * len(labels) / classes)
        smallest = int(torch.bincount(labels, minlength=classes).min())
        require(
            1 <= each <= smallest, "algorithm.holdout", self.holdout,
            f"takes {each} examples of each class, of which the smallest has {smallest}",
        )  # fmt: skip
        draw = generator(self.seed, "hold-out")
        ids = [(labels == label).nonzero().squeeze(1) for label in range(classes)]
        return torch.stack([own[torch.randperm(len(own), generator=draw)[:each]] for own in ids])

    def pretraining_world(self, world: World) -> World:
        return replace(world, rows=self.shared.to(world.device), sizes=torch.tensor([len(self.shared)]))

    def round(self, state: State, world: World, engine: Engine, gen: Generator) -> State:
        if state["round"] == 0:
            engine.exchange(torch.arange(world.clients), down=self._initial(state, world))
        return super().round(state, world, engine, gen)

    def _initial(self, state: State, world: World) -> tree.Tree:
        """What all N clients receive once: their shared examples as they are stored, and the warm-up model."""
        part = round(self.alpha * len(self.shared))
        down: tree.Tree = {}
        if part:
            rows = torch.stack([world.of(client)[-part:] for client in range(world.clients)])
            down = {"x": world.x[rows], "y": world.y[rows]}
        if state["pretraining"]["epochs"]:
            down["model"] = tree.spread(state["params"], world.clients)
        return down
