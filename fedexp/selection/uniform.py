"""Uniform selection without replacement, and the interface of all selections."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Generator, Tensor

from fedexp.config.bounds import OneOf, check_fields
from fedexp.config.frozen import Frozen
from fedexp.engine import ClientFunctions, Context, Question
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class Uniform(Frozen):
    """K of N clients, each set of K equally likely. merge: how updates are weighted in the mean: examples (by n_k) or
    equal, as in papers with a plain mean.

    Fields of a selection are settings; its memory is a nested dict of tensors that is passed to its functions.
    """

    merge: Annotated[str, OneOf("examples", "equal")] = "examples"

    def __post_init__(self) -> None:
        check_fields(self, "selection")

    @property
    def sampling(self) -> str | None:
        """How clients are drawn, if by chance alone: fixed (K of N without replacement, possibly all) or poisson (each
        independently); None if the draw depends on anything else, such as what clients sent."""
        return "fixed" if type(self).select is Uniform.select else None

    @property
    def ordinary(self) -> bool:
        """Whether clients are drawn at most once per round and weighted by n_k, so that an algorithm may use weights of
        its own instead."""
        return self.merge == "examples" and type(self).weights is Uniform.weights

    @property
    def reports_loss(self) -> bool:
        """Whether every client also uploads its mean local loss, for `learn`."""
        return False

    def check(self, ctx: Context) -> None:
        """Raise ConfigError for settings that cannot work with these clients."""

    def init(self, ctx: Context, params: Params) -> Tree:
        """The selection's memory before the first round. params: the trained entries that cross the network."""
        return {}

    def select(self, memory: Tree, ctx: Context, gen: Generator) -> Tensor:
        """Client ids [K]."""
        return torch.randperm(ctx.clients, generator=gen)[: ctx.cohort]

    def question(self, algorithm: ClientFunctions, number: int, ctx: Context) -> Question | None:
        """What the candidates that `select` gives are asked in round `number` (from 0), in a survey by its `inspect`,
        before the cohort is chosen from them; None: nothing is asked, the candidates are the cohort."""
        return None

    def choose(self, ids: Tensor, answers: Tree, ctx: Context) -> Tensor:
        """The positions [K] in `ids` [n] of the clients that form the cohort, by their answers [n, ...]."""
        return torch.arange(len(ids))

    def weights(self, ids: Tensor, ctx: Context) -> Tensor:
        """The weight of each client's update in the mean [K], not normalised."""
        return ctx.sizes[ids] if self.merge == "examples" else torch.ones(len(ids))

    def learn(self, memory: Tree, ids: Tensor, uploads: Tree, ctx: Context) -> Tree:
        """The selection's memory after a round, from what clients `ids` uploaded, leaves [K, ...]: "update", whatever
        else the algorithm sends, and, if `reports_loss`, "selection" with the mean local "loss" [K]."""
        return memory

    def artifacts(self, memory: Tree) -> dict[str, Any]:
        """Tables (data frames) for the run's folder, by file name."""
        return {}
