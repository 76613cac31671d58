"""FedCat (Hu et al., "Towards Accurate Federated Learning via Device Concatenation"), algorithms 1 to 3.

K copies of the global model each visit K devices, one a round, before they are merged (a cycle of K
rounds); devices are drawn one from each of K random groups, those that took part least the likeliest.

Between merges the last merged model is evaluated, so the curve over communication rounds is a staircase
that rises every K rounds, as in the paper, which tests every 10 rounds with K = 10. The ablations of its
section 4.3 are two switches: `fedcat_gc` selects from groups but merges every round, `fedcat_dc`
concatenates but selects uniformly. With neither, this is FedAvg.

The paper does not give lambda, epsilon or how counts start; here they count from 0 and the weight of a
device is 1 / sqrt(count + 1), ties broken at random.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Engine, Sent, Trained
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.tree import Params
from fedexp.world import World


@dataclass
class FedCat(FedAvg):
    """epsilon: probability of the greedy choice (algorithm 3, line 3). cycles_per_grouping: lambda, the
    number of cycles after which devices are grouped anew."""

    epsilon: float = 0.5
    cycles_per_grouping: int = 1
    grouping: bool = True
    concatenation: bool = True

    def __post_init__(self) -> None:
        require(0 <= self.epsilon <= 1, "algorithm.epsilon", self.epsilon, "must be in [0, 1]")
        cycles = self.cycles_per_grouping
        require(cycles >= 1, "algorithm.cycles_per_grouping", cycles, "must be at least 1")

    def init(self, world: World, model: Model, params: Params) -> State:
        k = self.clients_per_round
        return {
            **super().init(world, model, params),
            "copies": tree.apply(torch.clone, tree.spread(params, k)),
            "examples": torch.zeros(k, dtype=torch.int64),
            "counts": torch.zeros(world.clients, k, dtype=torch.int64),
            "groups": torch.zeros(world.clients, dtype=torch.int64),
        }

    def round(self, state: State, world: World, engine: Engine, gen: Generator) -> State:
        return super().round(self._begin(state, world, gen), world, engine, gen)

    def _begin(self, state: State, world: World, gen: Generator) -> State:
        """Group anew every lambda K rounds; start a cycle from K copies of the global model."""
        k, round = self.clients_per_round, state["round"]
        if self.grouping and round % (self.cycles_per_grouping * k) == 0:
            places = torch.arange(world.clients) % k  # sizes differ by at most one
            state = {**state, "groups": places[torch.randperm(world.clients, generator=gen)]}
        if round % k == 0 or not self.concatenation:
            copies = tree.apply(torch.clone, tree.spread(state["params"], k))
            state = {**state, "copies": copies, "examples": torch.zeros(k, dtype=torch.int64)}
        return state

    def select(self, state: State, world: World, gen: Generator) -> Tensor:
        """The device that each copy visits: copy i goes to the device of group (offset + i) mod K."""
        if not self.grouping:
            return super().select(state, world, gen)
        k, offset = self.clients_per_round, state["round"] % self.clients_per_round
        chosen = torch.stack([self._from_group(state, group, offset, gen) for group in range(k)])
        return chosen[(offset + torch.arange(k)) % k]

    def _from_group(self, state: State, group: int, offset: int, gen: Generator) -> Tensor:
        members = (state["groups"] == group).nonzero().squeeze(1)
        weight = (state["counts"][members, offset] + 1).double().rsqrt()
        if torch.rand((), generator=gen) < self.epsilon:
            weight = (weight == weight.max()).double()  # the heaviest; among equals any
        return members[torch.multinomial(weight, 1, generator=gen)[0]]

    def send(self, state: State, ids: Tensor) -> Sent:
        return Sent(state["copies"])

    def merge(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> State:
        k, offset = self.clients_per_round, state["round"] % self.clients_per_round
        counts = state["counts"].clone()
        counts[ids, offset] += 1
        examples = state["examples"] + trained.sizes
        state = {**state, "counts": counts, "copies": trained.params, "examples": examples}
        if self.concatenation and offset != k - 1:
            return state
        return {**state, "params": tree.mean(trained.params, examples)}
