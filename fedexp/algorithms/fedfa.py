"""FedFA (Huang et al., "Fairness and accuracy in horizontal federated learning"): weights by accuracy and frequency.

With acc_k the accuracy of the received model on the client's own training data and f_k how often it has taken
part (this round included):  a_k = -log2(acc_k / sum acc + 1e-6),  b_k = -log2(1 - f_k / sum f + 1e-5), each
normalised to sum 1;  p_k = alpha a_k + (1 - alpha) b_k;  w' = sum p_k w_k;
m <- gamma m + (1 - gamma)(w' - w^t);  w^{t+1} = w' + sign eta m with the clients' learning rate eta.

The sign of the server's momentum is -1 in the published code; the paper's is unverified. The published code
gives the clients the same momentum gamma: set local.momentum with it. Accuracies below 0.001 count as 0.001.
Running statistics are averaged by p_k and have no momentum.
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
class FedFA(FedAvg):
    """alpha: share of the accuracies in the weights, the rest being the frequencies'. gamma, sign: server momentum."""

    alpha: float = 1.0
    gamma: float = 0.0
    sign: int = -1

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "algorithm.alpha", self.alpha, "must be in [0, 1]")
        require(0 <= self.gamma < 1, "algorithm.gamma", self.gamma, "must be in [0, 1)")
        require(self.sign in (-1, 0, 1), "algorithm.sign", self.sign, "must be -1, 1, or 0 for no server momentum")

    def init(self, world: World, model: Model, params: Params) -> State:
        zero = {name: torch.zeros_like(params[name]) for name in model.weights}
        rounds = torch.zeros(world.clients, dtype=torch.int64)
        return {**super().init(world, model, params), "momentum": zero, "participations": rounds}

    def round(self, state: State, world: World, engine: Engine, gen: Generator) -> State:
        """As FedAvg's, but that each client first tests the received model on its own training data."""
        ids = self.select(state, world, gen)
        sent = self.send(state, ids)
        accuracy, participations = engine.judge(self, ids, sent).float(), state["participations"][ids] + 1
        sent = sent._replace(memory={"accuracy": accuracy, "participations": participations.to(accuracy)})
        trained = engine.train(self, state, ids, sent)
        return {**self.merge(state, ids, sent, trained), "round": state["round"] + 1}

    def reply(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> tree.Tree:
        return dict(sent.memory)

    def weights(self, accuracy: Tensor, participations: Tensor) -> Tensor:
        """p [K], summing to 1."""
        accuracy, participations = accuracy.double().cpu().clamp_min(1e-3), participations.double().cpu()
        a = -torch.log2(accuracy / accuracy.sum() + 1e-6)
        b = -torch.log2(1 - participations / participations.sum() + 1e-5)
        return self.alpha * a / a.sum() + (1 - self.alpha) * b / b.sum()

    def merge(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> State:
        mean = tree.mean(trained.params, self.weights(**trained.reply))
        rate, old = self.sign * self.local.rate(state["round"]), state["params"]
        momentum = {
            name: self.gamma * m + (1 - self.gamma) * (mean[name] - old[name]) for name, m in state["momentum"].items()
        }
        params = {name: value + rate * momentum[name] if name in momentum else value for name, value in mean.items()}
        participations = state["participations"].clone()
        participations[ids] += 1
        return {**state, "params": params, "momentum": momentum, "participations": participations}
