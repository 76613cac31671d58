"""FedSoft (Ruan and Joe-Wong, "Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022).

A client belongs to every cluster: u_ks is the share of its examples on which model s has the smallest loss.
It trains one model, from that of its largest share, drawn to all K models by a proximal term; each model then
becomes the mean of all returned ones by n_k u_ks. Selection is uniform, as in FedConcat's experiments.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedexp import tree
from fedexp.algorithms.clustered import Clustered, distinct, losses, means
from fedexp.engine import Batch, Engine, Sent, Trained
from fedexp.engine.client import OneClient
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.tree import Params
from fedexp.world import World

_LEAST = 1e-4  # floor of u_ks, in the published code


@dataclass
class FedSoft(Clustered):
    """mu weighs the proximal term. interval: rounds for which a client's shares u stand (the paper's tau)."""

    mu: float = 0.01
    interval: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mu >= 0, "algorithm.mu", self.mu, "must be at least 0")
        require(self.interval >= 1, "algorithm.interval", self.interval, "must be at least 1")

    def init(self, world: World, model: Model, params: Params) -> State:
        return {
            **super().init(world, model, params),
            "params": distinct(params, self.clusters),
            "importance": torch.full((world.clients, self.clusters), 1 / self.clusters, dtype=world.dtype),
            "estimated": torch.full((world.clients,), -self.interval),
        }

    def assign(self, state: State, ids: Tensor, engine: Engine) -> State:
        """Estimate u anew where it is `interval` rounds old (or, with partial participation, older)."""
        importance, estimated = state["importance"].clone(), state["estimated"].clone()
        for client in ids[state["round"] - estimated[ids] >= self.interval].tolist():
            importance[client] = self._shares(state, client, engine).clamp_min(_LEAST)
            estimated[client] = state["round"]
        return {**state, "importance": importance, "estimated": estimated, "assigned": importance.argmax(1)}

    def choices(self, state: State, ids: Tensor, engine: Engine) -> Tensor:
        return torch.stack([self._shares(state, client, engine).argmax() for client in ids.tolist()])

    def _shares(self, state: State, client: int, engine: Engine) -> Tensor:
        """Of the client's examples, on how many which model has the smallest loss [K]."""
        nearest = losses(state["params"], client, engine).argmin(0).cpu()
        return torch.bincount(nearest, minlength=self.clusters).to(engine.world.dtype) / len(nearest)

    def send(self, state: State, ids: Tensor) -> Sent:
        """The model to start from and the K - 1 others; the client knows its shares u."""
        models, own = state["params"], state["assigned"][ids]
        every = torch.arange(self.clusters).expand(len(ids), -1)
        others = every[every != own[:, None]].view(len(ids), self.clusters - 1)
        share = state["importance"][ids].to(next(iter(models.values())).device)
        memory = {"own": share.gather(1, own[:, None].to(share.device)).squeeze(1)}
        if self.clusters == 1:
            return Sent(tree.take(models, own), memory=memory)
        memory["others"] = share.gather(1, others.to(share.device))
        return Sent(tree.take(models, own), {"others": tree.take(models, others)}, memory)

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        weights = {name: params[name] for name in model.weights}
        distance = sent.memory["own"] * tree.squared_distance(weights, sent.start)
        for row in range(self.clusters - 1):
            other = tree.take(sent.extra["others"], row)
            distance = distance + sent.memory["others"][row] * tree.squared_distance(weights, other)
        return super().loss(model, params, batch, sent) + self.mu / 2 * distance

    def merge(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> State:
        weights = state["importance"][ids].T * trained.sizes
        return {**state, "params": means(state["params"], trained.params, weights)}
