"""SCAFFOLD, option II (Karimireddy et al., ICML 2020): control variates correct each client's drift.

Under momentum the correction is added to the gradient. A client's new control variate divides its path by the
effective number of steps of momentum SGD (`Local.path`), which is S without momentum; `path=published` divides by S
as published. Updates are averaged by n_k like the other algorithms' (the original: uniformly, `weights=uniform`); the
server's learning rate eta_g is server_optimizer.lr. Running statistics have no control variate.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg, zeros
from fedexp.config.bounds import OneOf
from fedexp.engine import Client, Context, State
from fedexp.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg):
    """path: effective or published; weights: examples or uniform (module docstring)."""

    path: Annotated[str, OneOf("effective", "published")] = "effective"
    weights: Annotated[str, OneOf("examples", "uniform")] = "examples"

    needs_sgd = "SCAFFOLD's control variates are defined for sgd"

    def init(self, ctx: Context, params: Params) -> State:
        return {**super().init(ctx, params), "control": zeros(params, ctx)}

    def memory(self, ctx: Context, params: Params) -> Tree:
        return {"control": zeros(params, ctx)}

    def download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        return {**super().download(state, ids, ctx), "control": tree.spread(state["control"], len(ids))}

    def correct(self, grads: Params, params: Params, client: Client) -> Params:
        server, own = client.download["control"], client.memory["control"]
        return {name: grad - own[name] + server[name] for name, grad in grads.items()}

    def upload(self, params: Params, client: Client) -> Tree:
        return {**super().upload(params, client), "control": self._change(params, client)}

    def remember(self, params: Params, client: Client) -> Tree:
        return {"control": tree.apply(torch.add, client.memory["control"], self._change(params, client))}

    def combine(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Params:
        if self.weights == "uniform":
            return tree.mean(uploads["update"], torch.ones(len(ids)))
        return super().combine(state, ids, uploads, ctx)

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        times = (ids[:, None] == ids).sum(1).double()  # CluSamp may draw a client twice, but it has one control variate
        share = 1 / times / ctx.clients
        control = tree.apply(
            lambda c, dc: c + torch.tensordot(share.to(dc), dc, 1), state["control"], uploads["control"]
        )  # fmt: skip
        return {**super().aggregate(state, ids, uploads, ctx, gen), "control": control}

    def _change(self, params: Params, client: Client) -> Params:
        """dc = c_i' - c_i = -c + (w - y) / (a eta)."""
        scale = 1 / ((client.path if self.path == "effective" else client.steps) * client.lr)
        return {
            name: (client.start[name] - params[name]) * scale - server
            for name, server in client.download["control"].items()
        }
