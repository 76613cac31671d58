"""SCAFFOLD, option II (Karimireddy et al., ICML 2020): control variates correct each client's drift.

Under momentum the correction is added to the gradient. A client's new control variate divides its path by
the effective number of steps of momentum SGD, a = (S - rho (1 - rho^S) / (1 - rho)) / (1 - rho), which
is S without momentum; `path=published` divides by S as published. Models are averaged by n_k like the
other algorithms' (the original: uniformly, `weights=uniform`). Running statistics have no control variate.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Sent, Trained
from fedexp.engine.client import OneClient
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.models import Model
from fedexp.tree import Params
from fedexp.world import World


@dataclass
class Scaffold(FedAvg):
    """server_lr is eta_g. path: effective or published; weights: examples or uniform (module docstring)."""

    server_lr: float = 1.0
    path: str = "effective"
    weights: str = "examples"

    def __post_init__(self) -> None:
        require(self.server_lr > 0, "algorithm.server_lr", self.server_lr, "must be above 0")
        require(
            self.path in ("effective", "published"),
            "algorithm.path",
            self.path,
            "must be effective or published",
        )
        require(
            self.weights in ("examples", "uniform"), "algorithm.weights", self.weights,
            "must be examples or uniform",
        )  # fmt: skip
        require(
            self.local.optimizer == "sgd", "local.optimizer", self.local.optimizer,
            "SCAFFOLD's control variates are defined for sgd",
        )  # fmt: skip

    def init(self, world: World, model: Model, params: Params) -> State:
        zero = {name: torch.zeros_like(params[name]) for name in model.weights}
        return {**super().init(world, model, params), "control": zero, "client_controls": world.client_memory(zero)}

    def send(self, state: State, ids: Tensor) -> Sent:
        return Sent(
            tree.spread(state["params"], len(ids)),
            extra={"control": tree.spread(state["control"], len(ids))},
            memory={"control": tree.take(state["client_controls"], ids)},
        )

    def correct(self, grads: Params, params: Params, sent: OneClient) -> Params:
        server, own = sent.extra["control"], sent.memory["control"]
        return {name: grad - own[name] + server[name] for name, grad in grads.items()}

    def reply(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> tree.Tree:
        """dc = c_i' - c_i = -c + (w - y) / (a eta)."""
        scale = 1 / (self._path_length(trained.steps) * self.local.rate(state["round"]))
        change = {
            name: (sent.start[name] - trained.params[name]) * tree.rows(scale, server) - server
            for name, server in sent.extra["control"].items()
        }
        return {"control": change}

    def merge(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> State:
        change, clients = trained.reply["control"], len(next(iter(state["client_controls"].values())))
        server = tree.apply(lambda c, dc: c + dc.sum(0) / clients, state["control"], change)
        tree.put(state["client_controls"], ids, tree.apply(torch.add, sent.memory["control"], change))
        weights = trained.sizes if self.weights == "examples" else torch.ones(len(ids))
        mean = tree.mean(trained.params, weights)
        params = tree.apply(lambda old, new: old + self.server_lr * (new - old), state["params"], mean)
        return {**state, "params": params if self.server_lr != 1 else mean, "control": server}

    def _path_length(self, steps: Tensor) -> Tensor:
        rho = self.local.momentum if self.path == "effective" else 0.0
        steps = steps.double()
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
