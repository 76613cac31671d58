"""MoFedSAM (Qu et al., ICML 2022, arXiv:2206.02618): FedSAM whose local steps also follow the last global update.

A local step goes along beta g + (1 - beta) D. g is FedSAM's gradient, taken uphill. D is the last round's mean update,
as a gradient: D = - sum_k p_k (w_k - w) / (a_k lr), where lr is that round's learning rate and a_k the effective number
of client k's local steps (`Local.path`; without momentum, the number of steps, as published). D is 0 before the first
update, and does not depend on the server optimizer. Clipping, weight decay and local momentum act on the sum.

With radius 0 it is FedCM (Xu et al. 2021, arXiv:2106.10874), with beta 1 FedSAM, with both FedAvg.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import zeros
from fedexp.algorithms.fedsam import FedSAM
from fedexp.config.bounds import Within
from fedexp.engine import Client, Context, State
from fedexp.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class MoFedSAM(FedSAM):
    """beta: the gradient's share of a local step's direction. State also has "direction", D."""

    beta: Annotated[float, Within(0, 1, open_below=True)] = 0.1

    needs_sgd = "MoFedSAM turns updates into gradients by the steps of sgd"

    def init(self, ctx: Context, params: Params) -> State:
        return {**super().init(ctx, params), "direction": zeros(params, ctx)}

    def download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        return {**super().download(state, ids, ctx), "direction": tree.spread(state["direction"], len(ids))}

    def correct(self, grads: Params, params: Params, client: Client) -> Params:
        followed = client.download["direction"]
        return {name: self.beta * grad + (1 - self.beta) * followed[name] for name, grad in grads.items()}

    def upload(self, params: Params, client: Client) -> Tree:
        return {**super().upload(params, client), "path": client.path}

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        updates, lengths = uploads["update"], uploads["path"] * ctx.local.rate(state["round"])
        gradients = {name: -tree.rows(1 / lengths, updates[name]) * updates[name] for name in state["direction"]}
        direction = tree.mean(gradients, self.selection.weights(ids, ctx))
        return {**super().aggregate(state, ids, uploads, ctx, gen), "direction": direction}
