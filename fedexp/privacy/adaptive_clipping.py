"""DP-FedAvg with a clipping norm that follows a quantile of the updates' norms (Andrew et al., NeurIPS 2021).

A client uploads with its update whether the update's norm was at most C: b_k. After the round
C <- C exp(-eta_C (b - gamma)), with the noisy share b = (sum_S (b_k - 1/2) + N(0, sigma_b^2)) / K + 1/2.

The noise on updates is raised to z_D = (z^-2 - (2 sigma_b)^-2)^(-1/2) times C, so that updates and counts together cost
as much privacy as updates alone with noise z: epsilon is that of z.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedexp.config.bounds import Above, AtLeast, Within
from fedexp.engine import Context
from fedexp.errors import require
from fedexp.privacy.dp_fedavg import DpFedAvg, norm, scaled
from fedexp.randomness import generator
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class AdaptiveClipping(DpFedAvg):
    """clip_norm: the first C. quantile: gamma. rate: eta_C. count_noise: sigma_b; null: K / 20,
    or 0 where noise_multiplier is 0."""

    clip_norm: Annotated[float, Above(0)] = 0.1
    quantile: Annotated[float, Within(0, 1)] = 0.5
    rate: Annotated[float, AtLeast(0)] = 0.2
    count_noise: Annotated[float | None, Above(0)] = None

    @property
    def needs_all(self) -> str:
        why = "it divides the number of unclipped updates by clients_per_round, and with fewer answers can reach only "
        return "" if self.quantile == 0.5 else f"{why}privacy.quantile=0.5"

    def check(self, ctx: Context, sampling: str | None) -> None:
        super().check(ctx, sampling)
        require(
            self.count_noise is None or self.noise_multiplier > 0, "privacy.count_noise", self.count_noise,
            "has no effect without noise on the updates (privacy.noise_multiplier=0); use null",
        )  # fmt: skip
        most = 2 * self._count_noise(ctx)
        require(
            self.noise_multiplier == 0 or self.noise_multiplier < most,
            "privacy.noise_multiplier", self.noise_multiplier,
            f"must be below 2 count_noise = {most:g}: the noisy count alone would exceed that privacy cost; use more "
            "clients_per_round, or a larger privacy.count_noise",
        )  # fmt: skip

    def init(self, ctx: Context) -> Tree:
        return {"clip_norm": torch.tensor(self.clip_norm, dtype=ctx.world.dtype, device=ctx.world.device)}

    def download(self, memory: Tree) -> Tree:
        return {"clip_norm": memory["clip_norm"]}

    def clip(self, update: Params, received: Tree) -> tuple[Params, Tree]:
        largest = received["clip_norm"]
        return scaled(update, largest), {"within": norm(update) <= largest}

    def deviation(self, memory: Tree, ctx: Context) -> float | Tensor:
        both = self.noise_multiplier**-2 - (2 * self._count_noise(ctx)) ** -2
        return both**-0.5 * memory["clip_norm"]

    def learn(self, memory: Tree, told: Tree, ctx: Context, number: int) -> Tree:
        largest = memory["clip_norm"]
        count = told["within"].to(largest).sub(0.5).sum() if told else torch.zeros_like(largest)
        if self.noise_multiplier:
            noise = torch.randn((), generator=generator(ctx.seed, "clip noise", number)).to(largest)
            count = count + self._count_noise(ctx) * noise
        share = count / ctx.cohort + 0.5
        return {"clip_norm": largest * torch.exp(-self.rate * (share - self.quantile))}

    def metrics(self, memory: Tree, rounds: int, ctx: Context, sampling: str | None) -> dict[str, float]:
        """Epsilon, and the clipping norm of the next round."""
        return {**super().metrics(memory, rounds, ctx, sampling), "clip_norm": float(memory["clip_norm"])}

    def _count_noise(self, ctx: Context) -> float:
        return ctx.cohort / 20 if self.count_noise is None else self.count_noise
