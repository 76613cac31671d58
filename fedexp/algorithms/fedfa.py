"""FedFA (Huang et al., "Fairness and accuracy in horizontal federated learning"): weights by accuracy and frequency.

Let acc_k be the accuracy of the received model on the client's own training data and f_k the number of rounds in
which it has taken part (this one included); the client uploads both. Then
    a_k = -log2(acc_k / sum acc + 1e-6),  b_k = -log2(1 - f_k / sum f + 1e-5), each normalised to sum 1;
    p_k = alpha a_k + (1 - alpha) b_k,  D = sum p_k (w_k - w).
The server's step along D, with momentum, is fedexp/server_optimizer/fedfa.py.

Accuracies below 0.001 count as 0.001. Running statistics are averaged by p_k and have no momentum.
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import Within
from fedexp.engine import Client, Context, Examples, State
from fedexp.models import Model
from fedexp.server_optimizer.fedfa import FedFAMomentum
from fedexp.server_optimizer.sgd import Sgd
from fedexp.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class FedFA(FedAvg):
    """alpha: share of the accuracies in the weights; the rest is the share of the frequencies."""

    alpha: Annotated[float, Within(0, 1)] = 1.0
    server_optimizer: Sgd = field(default=FedFAMomentum())

    own_weights = True

    def memory(self, ctx: Context, params: Params) -> Tree:
        return {"participations": torch.zeros((), dtype=torch.int64, device=ctx.world.device)}

    def inspect(self, model: Model, download: Tree, memory: Tree, examples: Examples) -> Tree:
        return {"accuracy": examples.accuracy(lambda x: model(download["model"], x, training=False))}

    def upload(self, params: Params, client: Client) -> Tree:
        return {**super().upload(params, client), **client.found, **self.remember(params, client)}

    def remember(self, params: Params, client: Client) -> Tree:
        return {"participations": client.memory["participations"] + 1}

    def combine(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Params:
        return tree.mean(uploads["update"], self.weights(uploads["accuracy"], uploads["participations"]))

    def weights(self, accuracy: Tensor, participations: Tensor) -> Tensor:
        """p [K], summing to 1."""
        accuracy, participations = accuracy.double().cpu().clamp_min(1e-3), participations.double().cpu()
        a = -torch.log2(accuracy / accuracy.sum() + 1e-6)
        b = -torch.log2(1 - participations / participations.sum() + 1e-5)
        return self.alpha * a / a.sum() + (1 - self.alpha) * b / b.sum()
