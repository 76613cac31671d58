"""The base of algorithms whose clients keep some entries of the model to themselves (FedBN, FedPer).

These entries are neither downloaded nor uploaded, and not counted as bytes. The server's model holds their initial
values, with which every client begins.
"""

from dataclasses import dataclass

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Client, Context
from fedexp.models import Model
from fedexp.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class PartiallyShared(FedAvg):
    """`private` says which entries of the model stay with each client."""

    def private(self, model: Model) -> set[str]:
        """Names of the entries that clients keep to themselves."""
        return set()

    def memory(self, ctx: Context, params: Params) -> Tree:
        private = self.private(ctx.model)
        return {"private": {name: leaf for name, leaf in params.items() if name in private}}

    def shared(self, params: Params, ctx: Context) -> Params:
        private = self.private(ctx.model)
        return {name: leaf for name, leaf in params.items() if name not in private}

    def start(self, download: Tree, memory: Tree, found: Tree) -> Params:
        return {**download["model"], **memory["private"]}

    def remember(self, params: Params, client: Client) -> Tree:
        return {"private": {name: params[name] for name in client.memory["private"]}}
