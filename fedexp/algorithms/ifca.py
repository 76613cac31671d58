"""IFCA (Ghosh et al., "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020).

Each participant receives all M models, chooses the one with the smallest mean loss on its own examples and trains it;
the number of the chosen model is uploaded with the update (8 bytes).
"""

from dataclasses import dataclass

from fedexp.algorithms.clustered import ChosenByClients, losses
from fedexp.engine import Examples
from fedexp.models import Model
from fedexp.tree import Tree


@dataclass(frozen=True, kw_only=True)
class Ifca(ChosenByClients):
    """identical_start: all models start as the same model, as in FedConcat's published code; in the first round all
    clients then choose the first one. Otherwise they start as different models, as the method needs."""

    identical_start: bool = False

    def inspect(self, model: Model, download: Tree, memory: Tree, examples: Examples) -> Tree:
        return {"choice": losses(model, download["model"], examples).mean(1).argmin()}
