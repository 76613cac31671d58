"""FedSoft (Ruan and Joe-Wong, "Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022).

A client belongs to every cluster: u_ks is the share of its examples on which model s has the smallest loss.
It trains one model, starting from the model of its largest share and pulled towards all M models by a proximal term.
Each model then becomes the mean of all returned models weighted by n_k u_ks. Clients upload their M shares with the
update. By default selection is uniform, as in FedConcat's experiments.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedexp import tree
from fedexp.algorithms.clustered import ChosenByClients, losses
from fedexp.config.bounds import AtLeast
from fedexp.engine import Batch, Client, Context, Examples
from fedexp.models import Model
from fedexp.tree import Params, Stack, Tree

_LEAST = 1e-4  # floor of u_ks, in the published code


@dataclass(frozen=True, kw_only=True)
class FedSoft(ChosenByClients):
    """mu weighs the proximal term. interval: number of rounds for which a client's shares u are used before they are
    estimated again (the paper's tau); with partial participation they can become older."""

    mu: Annotated[float, AtLeast(0)] = 0.01
    interval: Annotated[int, AtLeast(1)] = 2

    def memory(self, ctx: Context, params: Params) -> Tree:
        """The client's shares u [M], and the round in which they were estimated."""
        place = ctx.world.device
        return {
            "importance": torch.full((self.clusters,), 1 / self.clusters, dtype=ctx.world.dtype, device=place),
            "estimated": torch.tensor(-self.interval, device=place),
        }

    def inspect(self, model: Model, download: Tree, memory: Tree, examples: Examples) -> Tree:
        """The client's shares, estimated anew if they are too old, and whenever it is asked outside of a round."""
        if examples.round is not None and not self._is_due(examples.round, memory):
            return {"importance": memory["importance"]}
        models = download["model"]
        # Merges can make models equal but for rounding, which must not divide the examples: the first of them counts.
        nearest = _first_equal(model.trained(models))[losses(model, models, examples).argmin(0)]
        shares = torch.bincount(nearest, minlength=self.clusters).to(examples.world.dtype) / len(nearest)
        return {"importance": shares.clamp_min(_LEAST)}

    def choice(self, found: Tree) -> Tensor:
        return found["importance"].argmax(-1)

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        weights, distance = model.trained(params), 0.0
        for row in range(self.clusters):
            center = tree.take(client.download["model"], row)
            distance = distance + client.found["importance"][row] * tree.squared_distance(weights, center)
        return super().loss(model, params, batch, client) + self.mu / 2 * distance

    def remember(self, params: Params, client: Client) -> Tree:
        due = self._is_due(client.round, client.memory)
        return {**client.found, "estimated": torch.where(due, client.round, client.memory["estimated"])}

    def membership(self, assigned: Tensor, uploads: Tree, models: int) -> Tensor:
        return uploads["importance"].cpu()

    def _is_due(self, number: int | Tensor, memory: Tree) -> Tensor:
        return number - memory["estimated"] >= self.interval


def _first_equal(models: Stack) -> Tensor:
    """For each of M models the first one that equals it but for rounding: int64 [M]."""
    weights = torch.cat([leaf.flatten(1) for leaf in models.values()], 1)
    apart = torch.stack([(weights - each).norm(dim=1) for each in weights])
    return (apart <= 100 * torch.finfo(weights.dtype).eps * weights.norm(dim=1)).int().argmax(1)
