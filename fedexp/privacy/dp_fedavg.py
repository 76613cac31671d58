"""User-level differential privacy: DP-FedAvg (McMahan, Ramage, Talwar, Zhang, ICLR 2018).

w <- w + lr / K (sum_S clip(w_k - w) + N(0, (z C)^2 I)), clip(x) = x min(1, C / ||x||) over all trained entries. All
clients count alike, and K is the expected size of a cohort: dividing by the actual size would reveal who took part.

Epsilon is computed after every round by Google's dp-accounting, from z, the way clients are drawn and the number of
rounds. If each client is drawn independently (selection=poisson), neighbouring data sets differ in one client more or
less, and the sum's sensitivity is C. If K of N are drawn, they differ in one client that is replaced by another: the
sensitivity is 2 C and the accountant's noise multiplier z / 2. The bound for all N clients taking part holds there as
well, and epsilon is the smaller of the two. For that case the column `epsilon_if_poisson` has the value of the Poisson
formula: papers often report it, but clients were not drawn in that way.

What a compression makes longer than C is clipped once more, which makes unbiased compressions biased. Error feedback
knows nothing of that, and is refused.

The guarantee covers the models that leave the server. It does not cover what a simulation records besides (training
losses, divergences, accuracies on clients' own data), hyper-parameters chosen by looking at the data, and noise that
anybody who knows the seed can draw again.
"""

import logging
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import inf
from typing import Annotated, Any

import torch
from torch import Tensor

from fedexp import tree
from fedexp.config.bounds import Above, AtLeast, OneOf, Within
from fedexp.engine import Context
from fedexp.errors import require
from fedexp.privacy.none import NoPrivacy
from fedexp.randomness import generator
from fedexp.tree import Params, Tree

_ASSUMPTIONS = {
    "poisson": "each client is drawn independently with probability clients_per_round / clients; neighbours differ in "
    "one client more or less",
    "fixed": "clients_per_round of the clients are drawn without replacement; neighbours differ in one client that is "
    "replaced by another",
}
_PLD = 0.3  # from this noise multiplier on, pld takes seconds


@dataclass(frozen=True)
class DpFedAvg(NoPrivacy):
    """noise_multiplier: z, noise on the sum of updates in units of C. clip_norm: C; null: no clipping, which needs
    z = 0. delta: below 1 / N. accountant: rdp, or pld (tighter, for selection=poisson only)."""

    noise_multiplier: Annotated[float, AtLeast(0)] = 1.0
    clip_norm: Annotated[float | None, Above(0)] = 1.0
    delta: Annotated[float, Within(0, 1, open_below=True, open_above=True)] = 1e-5
    accountant: Annotated[str, OneOf("rdp", "pld")] = "rdp"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.noise_multiplier == 0 or 1e-6 <= self.noise_multiplier <= 1e6, "privacy.noise_multiplier",
            self.noise_multiplier, "must be 0, or from 1e-6 to 1e6",
        )  # fmt: skip
        require(
            self.clip_norm is not None or self.noise_multiplier == 0, "privacy.clip_norm", self.clip_norm,
            "noise is measured in units of this norm; give a number, or privacy.noise_multiplier=0",
        )  # fmt: skip

    def check(self, ctx: Context, sampling: str | None) -> None:
        """Raise ConfigError for settings that cannot work, or if the accountant is not installed."""
        found = find_spec("dp_accounting") is not None
        require(found, "privacy", type(self).__name__, "needs dp-accounting for its epsilon: install fedexp[privacy]")
        require(
            sampling is not None, "privacy", type(self).__name__,
            "needs clients that are drawn by chance alone; use selection=poisson, uniform or full",
        )  # fmt: skip
        require(
            self.delta < 1 / ctx.clients, "privacy.delta", self.delta,
            f"must be below 1 / clients = {1 / ctx.clients:g}: otherwise one client's data may be revealed completely",
        )  # fmt: skip
        require(
            self.accountant == "rdp" or sampling == "poisson", "privacy.accountant", self.accountant,
            "is for selection=poisson; for cohorts of a fixed size use rdp",
        )  # fmt: skip
        require(
            self.accountant == "rdp" or self.noise_multiplier == 0 or self.noise_multiplier >= _PLD,
            "privacy.accountant", self.accountant,
            f"takes very long, and much memory, below privacy.noise_multiplier={_PLD}; use rdp",
        )  # fmt: skip

    def clip(self, update: Params, received: Tree) -> tuple[Params, Tree]:
        return (update if self.clip_norm is None else scaled(update, self.clip_norm)), {}

    def weights(self, weights: Tensor) -> Tensor:
        return torch.ones(len(weights))

    def perturb(self, mean: Params, cohort: int, memory: Tree, ctx: Context, number: int) -> Params:
        """The sum of the cohort's updates divided by the expected size of a cohort, with noise."""
        share = cohort / ctx.cohort
        if self.noise_multiplier == 0:
            return tree.apply(lambda leaf: leaf * share, mean)
        deviation, draw = self.deviation(memory, ctx) / ctx.cohort, generator(ctx.seed, "privacy noise", number)

        def noisy(leaf: Tensor) -> Tensor:
            return leaf * share + deviation * torch.randn(leaf.shape, generator=draw).to(leaf)

        return tree.apply(noisy, mean)

    def deviation(self, memory: Tree, ctx: Context) -> float | Tensor:
        """Standard deviation of the noise on the sum."""
        return self.noise_multiplier * self.clip_norm

    def metrics(self, memory: Tree, rounds: int, ctx: Context, sampling: str | None) -> dict[str, float]:
        """Epsilon of all rounds so far, for `delta`."""
        drawn = (self.noise_multiplier, ctx.clients, ctx.cohort, rounds, self.delta)
        if sampling == "poisson":
            return {"epsilon": epsilon(*drawn, "poisson", self.accountant)}
        return {"epsilon": epsilon(*drawn, "fixed"), "epsilon_if_poisson": epsilon(*drawn, "poisson")}

    def summary(self, sampling: str | None) -> dict[str, Any]:
        return {"delta": self.delta, "privacy_assumes": _ASSUMPTIONS[str(sampling)]}


def norm(update: Params) -> Tensor:
    """The Euclidean norm of all entries together: []."""
    return torch.stack([leaf.square().sum() for leaf in update.values()]).sum().sqrt()


def scaled(update: Params, largest: float | Tensor) -> Params:
    """The update, scaled to a norm of `largest` if it is longer."""
    length = norm(update)
    factor = torch.where(length <= largest, 1.0, largest / length)  # NaN if the norm or the bound is
    return {name: leaf * factor for name, leaf in update.items()}


@cache
def epsilon(
    noise_multiplier: float, clients: int, cohort: int, rounds: int, delta: float, sampling: str,
    accountant: str = "rdp",
) -> float:  # fmt: skip
    """Epsilon after `rounds` rounds of sums with noise of deviation `noise_multiplier` times the clipping norm.
    sampling: poisson or fixed (module docstring). Needs dp-accounting. Infinite without noise."""
    if noise_multiplier == 0:
        return inf
    import dp_accounting

    logging.getLogger("absl").setLevel(logging.ERROR)  # orders near 1 do not converge: left out, with a warning
    if sampling == "poisson":
        relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        noise = dp_accounting.GaussianDpEvent(noise_multiplier)
        events = [dp_accounting.PoissonSampledDpEvent(cohort / clients, noise)]
    else:  # each of the two is an upper bound
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        noise = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
        events = [dp_accounting.SampledWithoutReplacementDpEvent(clients, cohort, noise), noise]
    kind = dp_accounting.pld.PLDAccountant if accountant == "pld" else dp_accounting.rdp.RdpAccountant
    return min(float(kind(neighboring_relation=relation).compose(event, rounds).get_epsilon(delta)) for event in events)
