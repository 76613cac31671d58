"""FedAvg (McMahan et al., AISTATS 2017), and the hooks that every other algorithm refines.

Three things are kept apart. `download` is all that crosses from the server to a client, `upload` all that crosses
back, and a round's bytes are counted from these two alone. `memory` is what a client keeps to itself from round to
round; it is never counted. Only a `survey` exchanges tensors besides, and counts them in the same way.

Sizes: N clients, K in a cohort, C classes, B batch size. Params: one model by name; Stack: the same with a leading K.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from fedexp import tree
from fedexp.compression.none import NoCompression
from fedexp.config.bounds import check_fields
from fedexp.config.frozen import Frozen
from fedexp.engine import Batch, Client, Context, Examples, Local, Pass, Question, State, client_rows, returned
from fedexp.errors import require
from fedexp.models import Model
from fedexp.privacy.none import NoPrivacy
from fedexp.selection.uniform import Uniform
from fedexp.server_optimizer.sgd import Sgd
from fedexp.system.none import Ideal
from fedexp.tree import Params, Stack, Tree


@dataclass(frozen=True, kw_only=True)
class FedAvg(Frozen):
    """Select K clients, train them from the global model, move it along their mean update, weighted by n_k.

    Fields are settings and never change; all memory is in State, nested dicts of tensors and plain numbers, and in the
    clients' memory, nested dicts of tensors, so that checkpoints, resuming and any number of workers are right by
    construction.
    """

    selection: Uniform = Uniform()
    server_optimizer: Sgd = Sgd()
    compression: NoCompression = NoCompression()
    privacy: NoPrivacy = NoPrivacy()
    system: Ideal = Ideal()

    communicates = True  # False where nothing crosses a network (centralized training)

    @property
    def needs_all(self) -> str:
        """Why every client that is drawn must answer; empty where clients may fail."""
        return ""

    @property
    def needs_work(self) -> str:
        """Why every client that is drawn must do all of its work; empty where stragglers may answer with less."""
        return ""

    needs_sgd = ""  # why clients must train by SGD (local.optimizer); empty where they need not
    trains_anew = False  # whether a client that fills two places of a cohort trains with new random draws for each
    own_weights = False  # True where it weighs updates in a way of its own, whatever the selection's weights are
    needs_head = False  # True where the model must be an encoder and a head (fedexp.models.Classifier)
    two_models = False  # True where a client has a whole model of its own beside the global one; both are evaluated

    def __post_init__(self) -> None:
        check_fields(self, "algorithm")

    # ---- the server, before the first round

    def stages(self, ctx: Context) -> "list[Stage]":
        """The stages of a run, in order: for most algorithms, a single stage of all rounds."""
        return [Stage("training", self, ctx)]

    def check(self, ctx: Context) -> None:
        """Raise ConfigError for settings that cannot work in this world with this model."""
        self.selection.check(ctx)
        by_examples = replace(self.selection, merge="examples").ordinary
        require(
            self.selection.ordinary or not self.own_weights or not by_examples,
            "selection.merge", self.selection.merge,
            f"{type(self).__name__} weighs updates in a way of its own; use examples",
        )  # fmt: skip
        require(
            self.selection.ordinary or not self.own_weights, "selection", type(self.selection).__name__,
            f"weighs updates in its own way, and so does {type(self).__name__}; "
            "use selection=uniform or full, with selection.merge=examples",
        )  # fmt: skip
        asks = self.selection.reports_loss or type(self.selection).question is not Uniform.question
        require(
            type(self.privacy) is NoPrivacy or not asks, "privacy", type(self.privacy).__name__,
            f"does not protect clients' answers to {type(self.selection).__name__}; use privacy=none",
        )  # fmt: skip
        chosen = ctx.local.optimizer
        require(not self.needs_sgd or chosen == "sgd", "local.optimizer", chosen, self.needs_sgd)
        require(
            ctx.model.splits or not self.needs_head, "model", type(ctx.model.net).__name__,
            f"{type(self).__name__} needs a model of an encoder and a head: fedexp.models.Classifier(encoder, head)",
        )  # fmt: skip
        require(
            not (self.compression.merges and self.overrides("combine", "aggregate")),
            "compression", type(self.compression).__name__,
            f"replaces the mean of updates, and so does {type(self).__name__}; use one that only encodes updates",
        )  # fmt: skip
        self._check_system(ctx)
        if type(self.privacy) is not NoPrivacy:
            self._check_privacy(ctx)

    @property
    def parts(self) -> dict[str, Any]:
        """The parts that every algorithm has, by name: FedAvg's fields."""
        return {field.name: getattr(self, field.name) for field in fields(FedAvg)}

    def check_standard(self, why: str, *names: str) -> None:
        """Raise ConfigError unless these parts are as FedAvg has them by default. why: what is wrong with others."""
        for field in fields(FedAvg):
            part = getattr(self, field.name)
            right = f"{why}; leave {field.name} as it is"
            require(field.name not in names or part == field.default, field.name, type(part).__name__, right)

    def overrides(self, *hooks: str) -> list[str]:
        """Which of these hooks this algorithm overrides: some parts allow only FedAvg's."""
        return [name for name in hooks if getattr(type(self), name) is not getattr(FedAvg, name)]

    def _check_system(self, ctx: Context) -> None:
        chosen, name = type(self.system).__name__, type(self).__name__
        require(
            self.communicates or not self.system.clock, "system", chosen,
            f"simulates clients' devices, and {name} has no clients; use system=none",
        )  # fmt: skip
        require(
            self.system.reliable or not self.needs_all, "system", chosen,
            f"{name} needs an answer from every client that is drawn: {self.needs_all}; use a system without failures, "
            "a deadline or wait_for, and let stragglers answer (partial_work=aggregate)",
        )  # fmt: skip
        require(
            self.system.whole or not self.needs_work, "system", chosen,
            f"{name} needs all of the work of every client that is drawn: {self.needs_work}; use a system without "
            "failures and stragglers",
        )  # fmt: skip
        self.system.check(ctx)

    def _check_privacy(self, ctx: Context) -> None:
        """Privacy covers the mean of clipped updates: nothing else may reveal anything about clients to the server."""
        chosen, name = type(self.privacy).__name__, type(self).__name__
        own = self.overrides("stages", "enter", "select", "answers", "upload", "combine", "aggregate", "step")
        require(
            not own, "privacy", chosen,
            f"covers the mean of bounded updates alone, and {name} has hooks of its own around it "
            f"({', '.join(own)}); use privacy=none",
        )  # fmt: skip
        require(
            not self.compression.merges, "compression", type(self.compression).__name__,
            "does not take the mean of updates, which privacy's noise is for; use another one, or privacy=none",
        )  # fmt: skip
        require(
            not self.compression.init(ctx.model.params()), "compression", type(self.compression).__name__,
            "adds what was not sent to the client's next update, but does not know what privacy cuts off from what was "
            "sent; use compression.error_feedback=false",
        )  # fmt: skip
        crossing = {*self.shared(ctx.model.params(), ctx)} & {*ctx.model.statistics}
        require(
            not crossing, "privacy", chosen,
            f"does not cover running statistics, which are sent as they are ({', '.join(sorted(crossing))}); use a "
            "model without batch normalisation, or algorithm=fedbn",
        )  # fmt: skip
        require(
            self.system.independent or self.selection.sampling != "poisson", "system", type(self.system).__name__,
            "has stragglers or wait_for, by which one client more may change what others add; privacy with "
            "selection=poisson covers dropout and a deadline alone; use these, or selection=uniform",
        )  # fmt: skip
        require(
            self.system.reliable or not self.privacy.needs_all, "system", type(self.system).__name__,
            f"lets clients fail, and {chosen} needs an answer from every client that is drawn: "
            f"{self.privacy.needs_all}",
        )  # fmt: skip
        self.privacy.check(ctx, self.selection.sampling)

    def init(self, ctx: Context, params: Params) -> State:
        """What the server remembers: "params", the global model, and whatever else the algorithm needs."""
        return {"params": params}

    def memory(self, ctx: Context, params: Params) -> Tree:
        """ONE client's memory before it has ever taken part: nested dicts of tensors."""
        return {}

    def enter(self, state: State, ctx: Context) -> State:
        """Once, before a stage's first round: what the server asks or sends all clients (see `survey`)."""
        return state

    # ---- the server, each round

    def select(self, state: State, ctx: Context, gen: Generator) -> Tensor:
        """Client ids [K]. Where the selection questions candidates first, they receive the cohort's download for it."""
        ids = self.selection.select(state["selection"], ctx, gen)
        question = self.selection.question(self, state["round"], ctx)
        if question is None:
            return ids
        sent = self.download(state, ids, ctx)
        chosen = self.selection.choose(ids, self.survey(state, ids, sent, ctx, question), ctx)
        returned.ids(chosen, len(ids), "selection.choose", "positions among the candidates")
        ctx.engine.count(down=-len(chosen) * tree.size_in_bytes(sent) // len(ids))  # the chosen need no second copy
        return ids[chosen]

    def shared(self, params: Params, ctx: Context) -> Params:
        """The entries of a model that cross the network; all others stay at the server or at a client."""
        return params

    def download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        """All that crosses down, leaves [K, ...] (views by tree.spread where all clients get the same). "model": what
        clients start from, unless `start` says otherwise."""
        return {"model": tree.spread(self.shared(state["params"], ctx), len(ids))}

    def answers(
        self, state: State, ids: Tensor, examples: list[int], failed: int, down: float, up: float, ctx: Context
    ) -> tuple[Tensor, float]:
        """Which of clients `ids`, which have trained, answer in time [K], and how many simulated seconds the round
        takes: by default what the part `system` says (see fedexp/system/none.py)."""
        return self.system.answers(ids, examples, failed, down, up, ctx, state["round"])

    def combine(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Params:
        """The cohort's combined update of the model, without the leading axis of uploads["update"] [K, ...]: the mean,
        weighted as the selection says (by default by n_k), and equally under differential privacy."""
        right = 'must send an "update", or combine or aggregate must do without'
        require("update" in uploads, "", "upload", right)
        weights = returned.weights("selection.weights", self.selection.weights(ids, ctx), len(ids))
        weights = returned.weights("privacy.weights", self.privacy.weights(weights), len(ids))
        update = uploads["update"]
        merged = self.compression.merge(update, weights, ctx.weights)
        return returned.same_form("compression.merge", "the update", tree.take(update, 0), merged)

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        """The State after the server's step, from the uploads and no other data of the clients.

        state: as the round began; ids: int64 [K]; uploads: leaves [K, ...], updates decoded; gen: the round's own.
        """
        update = returned.combined(state["params"], self.combine(state, ids, uploads, ctx))
        return self.step(state, update, len(ids), ctx)

    def step(self, state: State, update: Params, cohort: int, ctx: Context) -> State:
        """The State after the server optimizer's step along the mean update of `cohort` clients."""
        mean = ctx.model.trained(update)
        trained = self.privacy.perturb(mean, cohort, state.get("privacy", {}), ctx, state["round"])
        returned.same_form("privacy.perturb", "the update", mean, trained)
        old, rate = state["params"], ctx.local.rate(state["round"])
        before, step = {name: old[name] for name in trained}, "server_optimizer.step"
        found = self.server_optimizer.step(before, trained, state["optimizer"], rate)
        stepped, optimizer = returned.pair(step, "entries, memory", found)
        returned.same_form(step, "the entries", before, stepped)
        others = {name: old[name] + change for name, change in update.items() if name not in trained}
        return {**state, "params": {**old, **others, **stepped}, "optimizer": optimizer}

    def survey(
        self, state: State, ids: Tensor, download: Tree, ctx: Context, question: Question | None = None
    ) -> Tree:  # fmt: skip
        """The answers of clients `ids` [n] to `question`, without training: what its `inspect` (None: the algorithm's
        own) returns on each client's row of `download`, leaves [n, ...].

        The bytes of `download` and of the answers are counted like those of any download and upload. Raises ConfigError
        under differential privacy, which would not cover the answers.
        """
        require(
            type(self.privacy) is NoPrivacy, "privacy", type(self.privacy).__name__,
            f"does not protect clients' answers to a survey, which {type(self).__name__} makes; use privacy=none",
        )  # fmt: skip
        memory = tree.to(client_rows.take(state["memory"], ids)["own"], ctx.world.device)
        returned.tensors("the download of survey", download, len(ids))
        return ctx.engine.survey(question or self, ids, download, memory)

    # ---- ONE client; pure functions, which a worker runs as they are and the engine vectorizes

    def passes(self, local: Local) -> list[Pass]:
        """The client's training passes in a round, in order (see `Pass`): for most algorithms one."""
        return [Pass(self, local)]

    def trains(self, model: Model) -> list[str]:
        """Names of the entries that the client trains, at least one; others can change only as running statistics."""
        return model.weights

    def inspect(self, model: Model, download: Tree, memory: Tree, examples: Examples) -> Tree:
        """What the client computes on its own examples before it trains: tensors, of the same shapes for every client.
        It is not vectorized, and stays with the client unless `upload` sends it or a survey asked for it. Each of a
        round's `passes` begins with its own."""
        return {}

    def start(self, download: Tree, memory: Tree, found: Tree) -> Params:
        """The weights from which the client trains. found: the result of `inspect`.

        Entries that the model lacks may be among them, such as a second head: `trains` names those that are trained,
        and `model` is called without them. A name with a slash never meets one of a module.
        """
        return download["model"]

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        """What the client minimises on one batch: mean cross-entropy. A batch may be padded, so that means over its
        examples are taken by `batch.mean` and `batch.cross_entropy`, which do not count padding."""
        return batch.cross_entropy(model(params, batch.x))

    def correct(self, grads: Params, params: Params, client: Client) -> Params:
        """The client's gradient as changed by the algorithm, before clipping, weight decay and momentum."""
        return grads

    # review(model, params, client, examples) -> Tree: what the client computes on its own examples after training ended
    # with `params`, in the manner of `inspect`; `upload` and `remember` have it in client.found. Only some classes have
    # this hook: a call for every client would cost all others time.
    review: ClassVar[Callable[..., Tree] | None] = None

    def upload(self, params: Params, client: Client) -> Tree:
        """All that crosses up. "update" goes through privacy and compression; anything else crosses as it is."""
        return {"update": {name: tree.change(params[name], client.start[name]) for name in client.download["model"]}}

    def remember(self, params: Params, client: Client) -> Tree:
        """The client's memory from now on."""
        return client.memory

    # ---- evaluation and reports

    def predict(self, state: State, model: Model, x: Tensor) -> Tensor:
        """Logits [n, C] of the global model."""
        return model(state["params"], x, training=False)

    def final(self, state: State) -> Params:
        """What becomes model.pt: with it alone as a State's "params", `predict` gives the logits that it gives now."""
        return state["params"]

    def personal_download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        """What clients `ids` [n], drawn or not, would receive to use a model instead of training it."""
        return self.download(state, ids, ctx)

    def personal(self, download: Tree, memory: Tree, found: Tree) -> Params:
        """The model that ONE client would use if it received `download` now: the one that it would start from."""
        return self.start(download, memory, found)

    def tuning(self) -> "dict[str, FedAvg]":
        """Fine-tuning that clients may do before they use their model, by the name under which it is evaluated (see
        fedexp/algorithms/fedavg_ft.py): here none."""
        return {}

    def starts(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Stack:
        """The models [K, ...] from which the cohort started, as the server knows them: the entries of updates."""
        return self.download(state, ids, ctx)["model"]

    def center(self, state: State, ids: Tensor, ctx: Context) -> Stack:
        """The model from which the weight divergence of each of `ids` is measured, [K, ...]: the global one."""
        return tree.spread(state["params"], len(ids))

    def metrics(self, state: State, ctx: Context) -> dict[str, float]:
        """What this algorithm adds to the row of an evaluated round in metrics.csv."""
        return {}

    def summary(self, state: State, ctx: Context) -> dict[str, Any]:
        """What this algorithm adds to result.json at the end."""
        return {}

    def artifacts(self, state: State, ctx: Context) -> dict[str, Any]:
        """Pictures (matplotlib figures) and tables (data frames) for the run's folder, by file name."""
        return self.selection.artifacts(state["selection"])


def zeros(params: Params, ctx: Context) -> Params:
    """Zeros in the shapes of the trained entries."""
    return {name: torch.zeros_like(params[name]) for name in ctx.weights}


@dataclass(frozen=True)
class Stage:
    """A part of a run: an algorithm and the context in which it trains.

    rounds: their number; None: all that remain of the run. counted: whether they are communication rounds (training at
    the server beforehand is not). begin: makes the algorithm's first State from the whole final State of the previous
    stage, "round" included (for the first stage, {"params": the initial model}); by default by `init`. inside: makes
    the context, where that depends on the State (a head over frozen encoders); called as the stage begins and when a
    run is resumed within it. done: whether to end the stage early; asked before every round, the first included. Each
    algorithm is checked in its stage's own context.
    """

    name: str
    algorithm: FedAvg
    context: Context
    rounds: int | None = None
    counted: bool = True
    begin: Callable[[Any, State, Context], State] = lambda algorithm, state, ctx: algorithm.init(ctx, state["params"])
    inside: Callable[[State, Context], Context] = lambda state, ctx: ctx
    done: Callable[[State, Context], bool] = lambda state, ctx: False
