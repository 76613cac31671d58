"""One communication round, the same for every algorithm: select, download, train, upload, aggregate."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.compression.none import NoCompression
from fedexp.engine import Context, State, Trained, client_rows, returned
from fedexp.engine.local_training import clipped
from fedexp.errors import require
from fedexp.privacy.none import NoPrivacy
from fedexp.randomness import generator
from fedexp.tree import Params, Stack, Tree

_START = {"round": 0, "stage": 0, "clock": 0.0}  # the clock: simulated seconds of the whole run
_KEPT = ("optimizer", "selection", "privacy", "memory", "tiles", "surveyed")  # written by `begin` and by rounds


@dataclass(frozen=True)
class Round:
    """All facts of a finished round, for the measures. uploads: as the server read them, updates decoded.

    before, after: the State at the round's beginning, which can be read until the next round, and at its end.
    loss: mean local loss [K]. examples: how many examples local training went through, that of late clients included.
    If no client took part, `ids` and `loss` are empty and nothing was uploaded.
    """

    algorithm: FedAvg
    ctx: Context
    before: State
    after: State
    ids: Tensor
    uploads: Tree
    loss: Tensor
    examples: int
    bytes_up: int
    bytes_down: int

    @property
    def number(self) -> int:
        """From 1."""
        return self.after["round"]

    @cached_property
    def models(self) -> Stack:
        """The cohort's trained models, as the server knows them [K, ...]: the entries that updates contain, none where
        clients send no "update". Raises ConfigError where the algorithm's `starts` does not fit its updates."""
        if "update" not in self.uploads:
            return {}
        starts, update = self.algorithm.starts(self.before, self.ids, self.uploads, self.ctx), self.uploads["update"]
        right = "must return the models from which the updates are taken (by default download's model)"
        returned.stack("starts", right, update, starts)
        return {name: starts[name] + change for name, change in update.items()}

    @cached_property
    def centers(self) -> Stack:
        """The model that each of `models` is compared with [K, ...]: the new global model, for most algorithms. Raises
        ConfigError where the algorithm's `center` does not fit its updates."""
        centers = self.algorithm.center(self.after, self.ids, self.ctx)
        trained = self.ctx.model.trained(self.uploads.get("update", {}))
        return returned.stack("center", "must return a model for each client", trained, centers)


def begin(algorithm: FedAvg, state: State, ctx: Context, place: Mapping[str, Any] = _START) -> State:
    """The whole State before a stage's first round, given what the algorithm's `init` returned. place: the numbers of
    the last round and of the stage, and the simulated seconds so far.

    What the algorithm asks or sends all clients as it enters the stage is exchanged here, counted in the first round.
    Raises ConfigError where the algorithm's State has entries of its own under names that rounds use.
    """
    taken = ", ".join(sorted(state.keys() & {*_START, *_KEPT}))
    right = f"init gives the State {taken}, which rounds write themselves; use other names"
    require(not taken, "algorithm", type(algorithm).__name__, right)
    params = state["params"]
    trained = ctx.model.trained(returned.tensors("shared", algorithm.shared(params, ctx)))
    first = {
        "own": returned.tensors("memory", algorithm.memory(ctx, params)),
        "compression": algorithm.compression.init(trained),
    }
    whole = {
        **_START,
        **place,
        **state,
        "optimizer": algorithm.server_optimizer.init(trained),
        "selection": algorithm.selection.init(ctx, trained),
        "privacy": algorithm.privacy.init(ctx),
        "memory": client_rows.new(first, ctx.clients, ctx.world.memory_device),
        "tiles": ctx.engine.fastest_tiles(ctx.cohort),
    }
    entered = returned.state("enter", algorithm.enter(whole, ctx), whole)
    up, down = ctx.engine.drain()
    return {**entered, "surveyed": {"up": up, "down": down}}  # counted in the first round


def one_round(algorithm: FedAvg, state: State, ctx: Context) -> Round:
    """Carry out the next round. A pure function of its arguments; `state` can be read until the round after it."""
    gen = generator(ctx.seed, "round", state["round"])
    with _only_read("select", state):
        drawn = returned.ids(algorithm.select(state, ctx, gen), ctx.clients)
    ids, trained, examples, down, up, seconds = _answers(algorithm, state, drawn, ctx)
    loss, uploads, after = torch.empty(0, dtype=ctx.world.dtype, device=ctx.world.device), {}, state
    if trained is not None:
        loss, uploads = trained.loss, decoded(algorithm, state, trained.uploads, ctx)
        aggregated = _aggregated(algorithm, state, ids, uploads, ctx, gen)
        with _only_read("selection.learn", state, uploads):
            learned = algorithm.selection.learn(state["selection"], ids, uploads, ctx)
        after = {
            **aggregated,
            "memory": client_rows.put(state["memory"], ids, trained.memory),
            "selection": returned.mapping("selection.learn", learned),
        }
    elif type(algorithm.privacy) is not NoPrivacy:  # noise, added all the same, hides that nobody took part
        unmoved = tree.apply(torch.zeros_like, algorithm.shared(state["params"], ctx))
        after = algorithm.step(state, unmoved, 0, ctx)
    surveyed, before = ctx.engine.drain(), state["surveyed"]
    told, memory, number = uploads.get("privacy", {}), state["privacy"], state["round"]
    after = {
        **after,
        "round": number + 1,
        "surveyed": {"up": 0, "down": 0},
        "privacy": algorithm.privacy.learn(memory, told, ctx, number),
        "clock": state["clock"] + seconds,
    }
    up, down = up + surveyed[0] + before["up"], down + surveyed[1] + before["down"]
    if not algorithm.communicates:
        up = down = 0
    return Round(algorithm, ctx, state, after, ids, uploads, loss, examples, up, down)


def _aggregated(
    algorithm: FedAvg, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator
) -> State:  # fmt: skip
    """What `aggregate` returns, checked. Only where "params" are a single model must they keep their form: the number
    of clusters' models can change."""
    before, own = state["params"], ctx.model.own
    single = all(name in own and own[name].shape == leaf.shape for name, leaf in before.items())
    with _only_read("aggregate", state, uploads):
        after = algorithm.aggregate(state, ids, uploads, ctx, gen)
    return returned.state("aggregate", after, ["params", *_START, *_KEPT], before if single else None)


@contextmanager
def _only_read(hook: str, state: State, uploads: Tree | None = None) -> Iterator[None]:
    """Raise ConfigError where a hook of the server, called within, changes the State that it is given, or the uploads:
    an interrupted round begins again with the same State. Rows of clients are left out, which `client_rows.put` writes
    where no State refers to them."""
    what = "the State" if uploads is None else "the uploads or the State"

    def given() -> Tree:
        return {"uploads": uploads or {}, "state": client_rows.without_rows(state)}

    before = returned.versions(given())
    yield
    returned.unchanged(hook, what, given(), before)


def _answers(
    algorithm: FedAvg, state: State, drawn: Tensor, ctx: Context
) -> tuple[Tensor, Trained | None, int, int, int, float]:
    """Clients `drawn` [K] receive the download; those that do not fail train, and some of these may be late.

    Returns the ids of those that answered in time [K'], the results of their training (None if there are none), how
    many examples training went through, that of late clients included, the bytes down and up, and the round's simulated
    seconds.
    """
    number, trained, up = state["round"], None, 0
    download = _download(algorithm, state, drawn, ctx) if len(drawn) else {}
    down = tree.size_in_bytes(download)
    can_do = returned.work(algorithm.system.work(drawn, ctx, number), len(drawn))
    ids, work = drawn, None
    if can_do is not None:
        able = can_do.nonzero().squeeze(1)
        ids, work, download = drawn[able], can_do[able].tolist(), tree.choose(download, able)
    if len(ids):
        memory = tree.to(client_rows.take(state["memory"], ids), ctx.world.device)
        ctx.engine.use_tiles(state["tiles"])
        trained = ctx.engine.train(algorithm, number, ids, download, memory, work)
        if algorithm.selection.reports_loss:
            trained = trained._replace(uploads={**trained.uploads, "selection": {"loss": trained.loss}})
        up = tree.size_in_bytes(trained.uploads)
    each = down / max(1, len(drawn)), up / max(1, len(ids))
    examples = trained.examples if trained else []
    with _only_read("answers", state):
        answers = algorithm.answers(state, ids, examples, len(drawn) - len(ids), *each, ctx)
    in_time, seconds = returned.answers(answers, len(ids))
    if not in_time.all():
        rows = in_time.nonzero().squeeze(1)
        ids, up = ids[rows], round(each[1] * len(rows))
        trained = trained.rows(rows) if len(rows) else None
    return ids, trained, sum(examples), down, up, seconds


def _download(algorithm: FedAvg, state: State, ids: Tensor, ctx: Context) -> Tree:
    """All that crosses down: the algorithm's download, and what clients need to clip their updates."""
    needed = algorithm.privacy.download(state["privacy"])
    with _only_read("download", state):
        download = returned.tensors("download", algorithm.download(state, ids, ctx), len(ids))
    return {**download, "privacy": tree.spread(needed, len(ids))} if needed else download


def decoded(algorithm: FedAvg, state: State, uploads: Tree, ctx: Context) -> Tree:
    """Uploads [K, ...] with their updates decoded, and clipped again, since compression may have enlarged them. What is
    not trained, and so not covered by privacy, takes no part under it."""
    if "update" not in uploads:
        require(
            type(algorithm.compression) is NoCompression, "compression", type(algorithm.compression).__name__,
            f'has no effect on {type(algorithm).__name__}, whose upload sends no "update"; use compression=none',
        )  # fmt: skip
        return uploads
    like = ctx.model.trained(algorithm.shared(state["params"], ctx))
    hook, what = "compression.decode", "the update"
    if type(algorithm.compression) is NoCompression:
        hook, what = "upload", 'as "update" changes of all trained entries that `shared` gives,'
    needed = algorithm.privacy.download(state["privacy"])

    def read(payload: Tree) -> Params:
        found = returned.same_form(hook, what, like, algorithm.compression.decode(payload, like))
        return clipped(algorithm.privacy, found, needed)[0]

    update = uploads["update"]
    encoded = torch.vmap(read)(update["encoded"]) if like else {}
    plain = update["plain"] if type(algorithm.privacy) is NoPrivacy else {}
    return {**uploads, "update": {**encoded, **plain}}


def personal_models(algorithm: FedAvg, state: State, ids: Tensor, ctx: Context) -> list[Params]:
    """The model that each of clients `ids` would use now. Nothing of this is counted as exchanged."""
    download = algorithm.personal_download(state, ids, ctx)
    return _models("personal", algorithm, state, ids, download, ctx)


def tuned_models(tuner: FedAvg, algorithm: FedAvg, state: State, ids: Tensor, ctx: Context) -> list[Params]:
    """The models of clients `ids` after each has fine-tuned its own as `tuner` does (FedAvg.tuning)."""
    download = algorithm.personal_download(state, ids, ctx)
    own = tree.to(client_rows.take(state["memory"], ids)["own"], ctx.world.device)
    trained = ctx.engine.train(tuner, state["round"], ids, download, {"own": own, "compression": {}})
    return _without_others(tree.unstack(trained.memory["own"]["model"]), ctx)


def first_models(done: Round) -> list[Params]:
    """The model that each client of a round's cohort began from."""
    download = done.algorithm.download(done.before, done.ids, done.ctx)
    return _models("start", done.algorithm, done.before, done.ids, download, done.ctx, done.before["round"])


def _models(
    hook: str, algorithm: FedAvg, state: State, ids: Tensor, download: Tree, ctx: Context, number: int | None = None
) -> list[Params]:  # fmt: skip
    """The model that `hook`, personal or start, makes of each client's download, memory and result of `inspect`.
    number: the round, from 0; None: none."""
    memory = tree.to(client_rows.take(state["memory"], ids)["own"], ctx.world.device)
    found = ctx.engine.inspect(algorithm, ids, download, memory, number)
    rows = ([tree.take(part, row) for part in (download, memory, found)] for row in range(len(ids)))
    models = [returned.one_model(hook, getattr(algorithm, hook)(*row), ctx.model.own) for row in rows]
    return _without_others(models, ctx)


def _without_others(models: list[Params], ctx: Context) -> list[Params]:
    """The models' own entries, without others that the algorithm trains beside them."""
    return [{name: leaf for name, leaf in each.items() if name in ctx.model.own} for each in models]
