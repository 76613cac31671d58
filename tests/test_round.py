"""The round: the server's side sees nothing of the clients but what they uploaded."""

from dataclasses import dataclass, replace

import pytest
import torch
from composing import checked
from options import ALGORITHMS, PARTS, WORDS, words_of
from worlds import make_context, make_model, make_world, run_stages

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.building import build_algorithm, build_context, build_dataset
from fedexp.engine import client_rows
from fedexp.round import one_round


class Leak(AssertionError):
    """The server has read what belongs to the clients."""


class Sealed:
    """Something of the clients', of which the server may read what is `known` alone."""

    def __init__(self, inside, *known):
        self.inside, self.known = inside, known

    def __getattr__(self, name):
        if name not in self.known:
            raise Leak(f"{name} of {type(self.inside).__name__}")
        return getattr(self.inside, name)

    def __getitem__(self, name):
        raise Leak(f"[{name}] of a {type(self.inside).__name__}")


# Of the world: sizes, which clients tell once, the form of the data, the test set.
KNOWN = (
    "clients", "sizes", "classes", "shape", "transform", "device", "dtype", "memory_device", "test_x", "test_y",
    "test_counts", "prepare_test", "test_transform",
)  # fmt: skip


class Server:
    """Mixed into an algorithm: its server side is handed a State without the clients' memory.

    Only a survey, whose answers are uploads, lets the clients themselves look at theirs.
    """

    def select(self, state, ctx, gen):
        return super().select(_without_memory(state), ctx, gen)

    def download(self, state, ids, ctx):
        return super().download(_without_memory(state), ids, ctx)

    def aggregate(self, state, ids, uploads, ctx, gen):
        return super().aggregate(_without_memory(state), ids, uploads, ctx, gen)

    def survey(self, state, ids, download, ctx, question=None):
        return super().survey({**state, "memory": state["memory"].inside}, ids, download, ctx, question)


def as_server(algorithm):
    """The same settings, of a class that keeps the two sides apart."""
    server = object.__new__(type("Server", (Server, type(algorithm)), {}))
    server.__dict__.update(vars(algorithm))
    return server


def _without_memory(state):
    return state if isinstance(state["memory"], Sealed) else {**state, "memory": Sealed(state["memory"])}


class Withholding:
    """An engine that trains once a round, and hands on nothing but uploads: memory and losses are nonsense."""

    def __init__(self, engine):
        self.engine, self.memory = engine, None
        self.survey, self.count, self.drain = engine.survey, engine.count, engine.drain
        self.use_tiles = engine.use_tiles

    def train(self, *arguments):
        if self.memory is not None:
            raise Leak("a second training")
        trained = self.engine.train(*arguments)
        self.memory = trained.memory
        return trained._replace(memory=tree.apply(_nonsense, trained.memory), loss=_nonsense(trained.loss))

    def __getattr__(self, name):
        raise Leak(f"{name} by the engine")


def _nonsense(leaf):
    return torch.full_like(leaf, float("nan") if leaf.is_floating_point() else 77)


def sealed_round(stage, state, ctx):
    """A round whose server side is cut off from the clients; what they remember is put back afterwards."""
    engine = Withholding(ctx.engine)
    apart = replace(ctx, world=Sealed(ctx.world, *KNOWN), engine=engine)
    done = one_round(as_server(stage.algorithm), state, apart)
    memory = client_rows.put(state["memory"], done.ids, engine.memory)
    return replace(done, after={**done.after, "memory": memory})


def assert_needs_uploads_alone(words):
    """All that the State holds is what it is without the seals, to the bit."""
    config, states = checked(*words, "rounds=3", "hardware.workers=1"), []
    for more in ({}, {"step": sealed_round}):
        states.append(run_stages(build_algorithm(config), build_context(config, build_dataset(config)), **more)[0])
    expected, found = (dict(tree.leaves(state)) for state in states)
    assert expected.keys() == found.keys()
    for path, value in expected.items():
        assert "seconds" in path[-1] or torch.equal(torch.as_tensor(value), torch.as_tensor(found[path])), path


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_server_of_every_algorithm_needs_uploads_alone(name):
    assert_needs_uploads_alone(words_of(name))


@pytest.mark.parametrize("part", PARTS)
def test_the_server_with_every_part_needs_uploads_alone(part):
    assert_needs_uploads_alone([*WORDS, *part.split()])


@dataclass(frozen=True, kw_only=True)
class Curious(FedAvg):
    """Reads in aggregate what nobody has uploaded."""

    what: str

    def memory(self, ctx, params):
        return {"last": torch.zeros((), dtype=torch.float64)}

    def aggregate(self, state, ids, uploads, ctx, gen):
        {
            "memory": lambda: client_rows.take(state["memory"], ids),
            "labels": lambda: ctx.world.label_counts,
            "examples": lambda: ctx.world.prepare(ctx.world.of(0)),
            "inspection": lambda: ctx.engine.inspect(self, ids, self.download(state, ids, ctx), {}),
            "training": lambda: ctx.engine.train(self, 0, ids, self.download(state, ids, ctx), {}),
        }[self.what]()
        return super().aggregate(state, ids, uploads, ctx, gen)


@pytest.mark.parametrize("what", ["memory", "labels", "examples", "inspection", "training"])
def test_a_server_that_reads_more_is_found_out(what):
    world = make_world()
    ctx = make_context(make_model("linear", world), world, rounds=1)
    with pytest.raises(Leak):
        run_stages(Curious(what=what), ctx, step=sealed_round)
