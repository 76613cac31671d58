"""Power-of-Choice (Cho, Wang and Joshi 2020, arXiv:2010.01243; AISTATS 2022): the clients with the largest loss train.

d candidates are drawn without replacement, in proportion to n_k. They receive the model from which they would train and
return its mean loss on their examples (evaluated: running statistics, no dropout). The K candidates with the largest
losses train; ties go to the lowest ids. The survey is counted: d models down, of which the cohort's are not sent again,
and d numbers up. The selection is biased by design: with d = N some clients may never train (participations.csv).

The paper's variants: pow-d asks for the loss on all examples, cpow-d for that on one batch. rpow-d asks nothing: each
client uploads its mean local loss with its update, K numbers, and the last one that the server has received counts.
Clients that have never answered come first, and of equal candidates those that were drawn first.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedexp.config.bounds import AtLeast, OneOf
from fedexp.config.frozen import Frozen
from fedexp.engine import ClientFunctions, Context, Examples, Question
from fedexp.errors import require
from fedexp.models import Model
from fedexp.randomness import generator
from fedexp.selection.uniform import Uniform
from fedexp.tree import Params, Tree


@dataclass(frozen=True)
class PowerOfChoice(Uniform):
    """candidates: d; None: 2 K, or N where that is less. drawn: whether candidates are drawn in proportion to their
    examples or uniformly. loss: on all of a client's examples (pow-d), on one batch (cpow-d), or the last mean local
    loss of its training (rpow-d).

    Memory: "participations", int64 [N]; with loss=last also "losses", float64 [N], infinite before a client's first.
    """

    candidates: Annotated[int | None, AtLeast(1)] = None
    drawn: Annotated[str, OneOf("examples", "uniform")] = "examples"
    loss: Annotated[str, OneOf("all", "batch", "last")] = "all"

    @property
    def reports_loss(self) -> bool:
        return self.loss == "last"

    def count(self, ctx: Context) -> int:
        """d, the number of candidates."""
        return min(2 * ctx.cohort, ctx.clients) if self.candidates is None else self.candidates

    def check(self, ctx: Context) -> None:
        require(
            ctx.cohort <= self.count(ctx) <= ctx.clients, "selection.candidates", self.candidates,
            f"must be from clients_per_round={ctx.cohort} to clients={ctx.clients}",
        )  # fmt: skip

    def init(self, ctx: Context, params: Params) -> Tree:
        counts = {"participations": torch.zeros(ctx.clients, dtype=torch.int64)}
        if self.loss != "last":
            return counts
        return {**counts, "losses": torch.full((ctx.clients,), torch.inf, dtype=torch.float64)}

    def select(self, memory: Tree, ctx: Context, gen: Generator) -> Tensor:
        """The candidates [d]; with loss=last the cohort [K]."""
        if self.drawn == "uniform":
            ids = torch.randperm(ctx.clients, generator=gen)[: self.count(ctx)]
        else:
            ids = torch.multinomial(ctx.sizes.double(), self.count(ctx), generator=gen)
        if self.loss != "last":
            return ids
        return ids[memory["losses"][ids].argsort(descending=True, stable=True)[: ctx.cohort]]

    def question(self, algorithm: ClientFunctions, number: int, ctx: Context) -> Question | None:
        if self.loss == "last":
            return None
        return Loss(algorithm, number, ctx.local.batch_size if self.loss == "batch" else None)

    def choose(self, ids: Tensor, answers: Tree, ctx: Context) -> Tensor:
        losses = answers["loss"].cpu().nan_to_num(nan=torch.inf)
        by_id = ids.argsort()
        largest = losses[by_id].argsort(descending=True, stable=True)[: ctx.cohort]
        return by_id[largest].sort().values

    def learn(self, memory: Tree, ids: Tensor, uploads: Tree, ctx: Context) -> Tree:
        counts = {"participations": memory["participations"] + torch.bincount(ids, minlength=ctx.clients)}
        if self.loss != "last":
            return counts
        reported = uploads["selection"]["loss"].to(memory["losses"]).nan_to_num(nan=torch.inf)
        return {**counts, "losses": memory["losses"].index_copy(0, ids, reported)}

    def artifacts(self, memory: Tree) -> dict[str, Any]:
        """How often each client has taken part."""
        counts = memory["participations"].numpy()
        return {"participations": pd.DataFrame({"rounds": counts}).rename_axis("client")}


@dataclass(frozen=True)
class Loss(Frozen):
    """Asks for the mean cross-entropy of the model from which a client would train, on all of its examples, or on
    `examples` of them, drawn anew each round: float64 []."""

    algorithm: ClientFunctions
    round: int
    examples: int | None

    def inspect(self, model: Model, download: Tree, memory: Tree, examples: Examples) -> Tree:
        found = self.algorithm.inspect(model, download, memory, examples)
        start = self.algorithm.start(download, memory, found)
        params = {name: start[name] for name in (*model.weights, *model.buffers) if name in start}

        def losses(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(params, x, training=False), y, reduction="none")

        if self.examples is None:
            return {"loss": examples.each(losses).double().mean()}
        draw = generator(examples.seed, "loss", self.round, examples.client)
        some = torch.randperm(len(examples), generator=draw)[: self.examples]
        rows = examples.rows[some.to(examples.rows.device)]
        return {"loss": losses(examples.world.prepare(rows), examples.world.y[rows]).double().mean()}
