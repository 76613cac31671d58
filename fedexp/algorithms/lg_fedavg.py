"""LG-FedAvg (Liang et al. 2020, arXiv:2001.01523): lower layers stay with each client, the top layers are averaged.

All layers train jointly. The original begins from a model that FedAvg has trained: `pretraining_rounds`.
"""

from dataclasses import dataclass
from typing import Annotated

from fedexp.algorithms.fedavg import FedAvg, Stage
from fedexp.algorithms.partially_shared import PartiallyShared
from fedexp.config.bounds import AtLeast
from fedexp.engine import Context
from fedexp.errors import require
from fedexp.models import Model


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(PartiallyShared):
    """shared_layers: number of averaged layers, counted from the top; all of them: FedAvg. pretraining_rounds: rounds
    of FedAvg before its own; they count among the run's rounds. The server optimizer begins anew after them."""

    shared_layers: Annotated[int, AtLeast(1)] = 1
    pretraining_rounds: Annotated[int, AtLeast(0)] = 0

    def stages(self, ctx: Context) -> list[Stage]:
        own = Stage("lg_fedavg", self, ctx)
        if self.pretraining_rounds == 0:
            return [own]
        return [Stage("fedavg", FedAvg(**self.parts), ctx, self.pretraining_rounds), own]

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        count = len(layers(ctx.model))
        require(
            self.shared_layers <= count, "algorithm.shared_layers", self.shared_layers,
            f"must be at most {count}, the layers of this model",
        )  # fmt: skip

    def private(self, model: Model) -> set[str]:
        return {name for layer in layers(model)[: -self.shared_layers] for name in layer}


def layers(model: Model) -> list[list[str]]:
    """Names of a model's entries, layer by layer from the bottom. A linear layer or a convolution begins a layer;
    modules that follow it and have no weights of two or more dimensions (normalisation) belong to it."""
    found: list[list[str]] = []
    for path, module in model.net.named_modules():
        own = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
        if not found or any(leaf.dim() > 1 for leaf in own.values()):
            found.append([])
        found[-1] += [f"{path}.{name}" if path else name for name in own]
    return [names for names in found if names]
