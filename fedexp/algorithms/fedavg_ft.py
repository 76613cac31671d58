"""FedAvg with fine-tuning: FedAvg's rounds, and each client trains a copy of its model by itself before it uses it.

Fine-tuning is part of the evaluation alone (evaluate.clients): it draws from random generators of its own, and changes
neither the clients' memory nor the model. Each length is evaluated separately, as tuned_1, tuned_5, ..., beside the
model before fine-tuning. Batch normalisation trains as well, and its statistics become the client's own.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated

from torch import Tensor

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import Above, OneOf
from fedexp.engine import Batch, Client, Context, Examples, Local, Pass
from fedexp.errors import require
from fedexp.models import Model
from fedexp.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(FedAvg):
    """tuning_epochs: lengths, in epochs over the client's examples. tuning_layers: all, head (the last linear layer) or
    body (all else). tuning_lr: its learning rate, which decays by local.lr_decay every round like that of the
    rounds; None: theirs."""

    tuning_epochs: list[int] = field(default_factory=lambda: [1, 5])
    tuning_layers: Annotated[str, OneOf("all", "head", "body")] = "all"
    tuning_lr: Annotated[float | None, Above(0)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = all(isinstance(epochs, int) and epochs > 0 for epochs in self.tuning_epochs)
        require(
            whole and len({*self.tuning_epochs}) == len(self.tuning_epochs),
            "algorithm.tuning_epochs", self.tuning_epochs, "must be different whole numbers of at least 1, as in [1,5]",
        )  # fmt: skip

    @property
    def needs_head(self) -> bool:  # type: ignore[override]
        return self.tuning_layers != "all"

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        require(
            all(tuner.trains(ctx.model) for tuner in self.tuning().values()),
            "algorithm.tuning_layers", self.tuning_layers, "this model has no such weights; use all or head",
        )  # fmt: skip

    def tuning(self) -> dict[str, FedAvg]:
        return {f"tuned_{epochs}": FineTuning(of=self, epochs=epochs) for epochs in self.tuning_epochs}


@dataclass(frozen=True, kw_only=True)
class FineTuning(FedAvg):
    """ONE client's fine-tuning of the model that it would use under the algorithm `of`, by the same loss. Nothing
    crosses the network; the memory that it returns is the tuned model."""

    of: FedAvgFT
    epochs: int

    def passes(self, local: Local) -> list[Pass]:
        longer = replace(local, epochs=self.epochs, steps=None, lr=self.of.tuning_lr or local.lr)
        return [Pass(self, longer, "/tuning")]

    def trains(self, model: Model) -> list[str]:
        head = [name for name in model.weights if name.startswith("head.")]
        body = [name for name in model.weights if name not in head]
        return {"all": model.weights, "head": head, "body": body}[self.of.tuning_layers]

    def inspect(self, model: Model, download: Tree, memory: Tree, examples: Examples) -> Tree:
        return self.of.inspect(model, download, memory, examples)

    def start(self, download: Tree, memory: Tree, found: Tree) -> Params:
        return self.of.personal(download, memory, found)

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        return self.of.loss(model, params, batch, client)

    def upload(self, params: Params, client: Client) -> Tree:
        return {}

    def remember(self, params: Params, client: Client) -> Tree:
        return {"model": params}
