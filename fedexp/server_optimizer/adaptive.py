"""FedAdagrad, FedAdam, FedYogi (Reddi et al., "Adaptive Federated Optimization", ICLR 2021, algorithm 2).

m <- beta1 m + (1 - beta1) D, v by each optimizer's own rule, w <- w + lr m / (sqrt(v) + tau), elementwise. As in the
paper there is no bias correction (`bias_correction` adds Adam's to Adam and Yogi), and v starts at tau^2 (`v_init`).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedexp import tree
from fedexp.config.bounds import Above, AtLeast, Within
from fedexp.errors import require
from fedexp.server_optimizer.sgd import Sgd
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class Adagrad(Sgd):
    """v <- v + D^2; beta1 is 0 in the paper. Also the step that all three optimizers share."""

    lr: Annotated[float, Above(0)] = 0.1
    beta1: Annotated[float, Within(0, 1, open_above=True)] = 0.0
    tau: Annotated[float, Above(0)] = 1e-3
    v_init: Annotated[float | None, AtLeast(0)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        right = "must be at most 1e+18 where v starts at its square, which single precision must have room for"
        require(self.v_init is not None or self.tau <= 1e18, "server_optimizer.tau", self.tau, right)

    def init(self, params: Params) -> Tree:
        first = self.tau**2 if self.v_init is None else self.v_init
        return {
            "m": tree.apply(torch.zeros_like, params),
            "v": tree.apply(lambda w: torch.full_like(w, first), params),
        }

    def second(self, v: Tensor, d: Tensor) -> Tensor:
        """The second moment after a round whose mean update is d."""
        return v + d.square()

    def rate(self, memory: Tree) -> tuple[float | Tensor, Tree]:
        """The learning rate of this round, and the counters to remember for the next."""
        return self.lr, {}

    def step(self, params: Params, update: Params, memory: Tree, lr: float) -> tuple[Params, Tree]:
        m = tree.apply(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, memory["m"], update)
        v = tree.apply(self.second, memory["v"], update)
        rate, counted = self.rate(memory)
        stepped = tree.apply(lambda w, m, v: w + rate * m / (v.sqrt() + self.tau), params, m, v)
        return stepped, {"m": m, "v": v, **counted}


@dataclass(frozen=True)
class Adam(Adagrad):
    """v <- beta2 v + (1 - beta2) D^2. With beta1 0, beta2 1, v_init 0 and tau = lr = 1 it is FedAvg."""

    beta1: Annotated[float, Within(0, 1, open_above=True)] = 0.9
    beta2: Annotated[float, Within(0, 1)] = 0.99
    bias_correction: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.beta2 < 1 or not self.bias_correction, "server_optimizer.bias_correction", self.bias_correction,
            "needs server_optimizer.beta2 below 1: with 1 there is nothing to correct, and the step would be 0",
        )  # fmt: skip

    def init(self, params: Params) -> Tree:
        steps = {"steps": torch.zeros((), dtype=torch.float64)} if self.bias_correction else {}
        return super().init(params) | steps

    def second(self, v: Tensor, d: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * d.square()

    def rate(self, memory: Tree) -> tuple[float | Tensor, Tree]:
        if not self.bias_correction:
            return super().rate(memory)
        t = memory["steps"] + 1
        return self.lr * (1 - self.beta2**t).sqrt() / (1 - self.beta1**t), {"steps": t}


@dataclass(frozen=True)
class Yogi(Adam):
    """v <- v - (1 - beta2) D^2 sign(v - D^2)."""

    def second(self, v: Tensor, d: Tensor) -> Tensor:
        return v - (1 - self.beta2) * d.square() * (v - d.square()).sign()
