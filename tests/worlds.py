"""Small worlds that tests train in: made data, or scikit-learn's digits; nothing is downloaded."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import nn

from fedexp import tree
from fedexp.data import Dataset, Transform
from fedexp.engine import Context, Hardware, Local
from fedexp.experiment import last_round
from fedexp.models import Classifier, Model
from fedexp.record.checkpoint import Checkpoint
from fedexp.round import begin, one_round
from fedexp.world import World

SIZES = [5, 40, 17, 30, 8, 20]  # unequal on purpose: some smaller than a batch, none a multiple of 8


def make_world(sizes=SIZES, classes=4, shape=(1, 8, 8), dtype=torch.float64, transform=None) -> World:
    """Random images with labels that depend on them, client k holding sizes[k] of them."""
    draw = torch.Generator().manual_seed(7)
    n = sum(sizes)
    x = torch.randint(0, 256, (n + 40, *shape), generator=draw, dtype=torch.uint8)
    y = torch.randint(0, classes, (n + 40,), generator=draw)
    x[:, 0, 0, 0] = (y * (255 // classes)).to(torch.uint8)
    rows = torch.randperm(n, generator=draw)
    transform = transform or Transform()
    return World(x[:n], y[:n], x[n:], y[n:], rows, torch.tensor(sizes), classes, transform, dtype)


def make_dataset(labels, classes=None) -> Dataset:
    """A data set of which only the labels matter."""
    y = torch.as_tensor(labels)
    x = torch.zeros(len(y), 1, 4, 4, dtype=torch.uint8)
    return Dataset("made", x, y, x[:1], y[:1], classes or int(y.max()) + 1, Transform())


def make_model(kind="cnn", world=None, dtype=torch.float64) -> Model:
    """cnn: convolution and linear; norm: with BatchNorm and dropout; linear: the head alone."""
    torch.default_generator.manual_seed(3)  # torch.manual_seed also looks for GPUs, which takes longer
    channels, classes = (world.shape[0], world.classes) if world else (1, 4)
    body = {
        "cnn": [nn.Conv2d(channels, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()],
        "norm": [
            nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout2d(0.2),
            nn.Flatten(), nn.Dropout(0.3),
        ],
        "linear": [nn.Flatten()],
    }[kind]  # fmt: skip
    head = nn.Linear(64 if kind == "linear" else 36, classes)
    return Model(Classifier(nn.Sequential(*body), head).to(dtype))


def make_context(
    model, world, local=None, cohort=3, rounds=10, engine="workers", workers=1, seed=0, precision="float64"
) -> Context:  # fmt: skip
    """What the server knows, with an engine that is ready to train."""
    local = local or Local(epochs=2, batch_size=8, lr=0.1, momentum=0.9)
    hardware = Hardware(device="cpu", engine=engine, workers=str(workers), precision=precision)
    return Context(model, world, local, hardware, cohort, rounds, seed).ready()


def start(algorithm, ctx):
    """The State before the first round of an algorithm of one stage."""
    (stage,) = algorithm.stages(ctx)
    algorithm.check(ctx)
    return begin(algorithm, stage.begin(algorithm, {"params": ctx.model.params()}, ctx), ctx)


def rounds(algorithm, ctx, count, state=None):
    """`count` Rounds, one after another, from `state` or from the start."""
    state, done = state or start(algorithm, ctx), []
    for _ in range(count):
        done.append(one_round(algorithm, state, ctx))
        state = done[-1].after
    ctx.engine.close()
    return done


def by_hand(model, params, world, client, lr):
    """One full-batch gradient step of a client on the linear model, by autograd on the ordinary formula."""
    weight, bias = (params[name].clone().requires_grad_() for name in ("head.weight", "head.bias"))
    rows = world.of(client)
    x = (world.x[rows].double() / 255).flatten(1)
    F.cross_entropy(x @ weight.T + bias, world.y[rows]).backward()
    return {"head.weight": (weight - lr * weight.grad).detach(), "head.bias": (bias - lr * bias.grad).detach()}


LOCAL = Local(epochs=2, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-3, lr_decay=0.9, max_grad_norm=1.0)


def play(
    algorithm, kind="cnn", mechanism="workers", workers=1, dtype=torch.float64, local=LOCAL, transform=None, count=3,
    cohort=3,
):  # fmt: skip
    """The State after all stages, `count` communication rounds, in the small world."""
    shape = (1 if kind == "linear" else 3, 8, 8)  # colours: memory formats differ from one channel's
    world = make_world(shape=shape, dtype=dtype, transform=transform)
    model = make_model(kind, world, dtype)
    precision = {torch.float64: "float64", torch.float32: "float32"}[dtype]
    ctx = make_context(model, world, local, cohort, count, mechanism, workers, precision=precision)
    return run_stages(algorithm, ctx)[0]


def run_stages(
    algorithm, ctx, state=None, limit=None, step=lambda stage, state, ctx: one_round(stage.algorithm, state, ctx)
):
    """Stage by stage as a run does: the State at the end, and (the stage's name, Round) of every round.

    state: goes on from there, with new engines. limit: ends after so many rounds, before another stage is entered; 0:
    once a stage is entered. step: carries out a round.
    """
    stages, done = algorithm.stages(ctx), []
    for stage in stages:
        stage.algorithm.check(stage.context)
    for number, stage in enumerate(stages):
        if state and state["stage"] > number:
            continue
        if state and state["stage"] == number:
            inside = stage.inside(state, stage.context.ready()).ready()
        else:
            count = state["round"] if state and stages[number - 1].counted else 0
            if stage.counted and count >= ctx.rounds:
                break  # no round is left for it
            state, inside = _entered(stage, state or {"params": ctx.model.params()}, count, number)
        last = last_round(stages, number, ctx.rounds)
        while not (over := state["round"] >= last or stage.done(state, inside)) and len(done) != limit:
            done.append((stage.name, step(stage, state, inside)))
            state = done[-1][1].after
        inside.engine.close()
        if len(done) == limit and (limit > 0 or not over):
            break
    return state, done


def _entered(stage, last, count, number):
    """(the State before a stage's first round, the context within)."""
    ctx = stage.context.ready()
    first = stage.begin(stage.algorithm, last, ctx)
    inside = stage.inside(first, ctx).ready()
    return begin(stage.algorithm, first, inside, {"round": count, "stage": number}), inside


def gap(first, second):
    """Largest difference between two States' params, relative to the largest entry of each tensor."""
    first, second = first["params"], second["params"]
    return max(float((first[name] - second[name]).abs().max() / first[name].abs().max()) for name in first)


def assert_mechanisms_agree(algorithm, kind="cnn", **settings):
    """One by one and vectorized: the same weights to 1e-9 in float64."""
    alone = play(algorithm, kind, "workers", **settings)
    stack = play(algorithm, kind, "vectorized", **settings)
    assert gap(alone, stack) < 1e-9


def assert_resumes(algorithm, kind="cnn", local=LOCAL, count=4, cohort=3, transform=None):
    """A run that goes on from its checkpoint after every round, with everything else built anew, ends the same.

    Entries of seconds apart, every number and tensor is bit-equal; on a GPU, where there is one, up to rounding.
    """
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        _assert_resumes(torch.device(device), algorithm, kind, local, count, cohort, transform)


def _assert_resumes(device, algorithm, kind, local, count, cohort, transform):
    def built():
        world = make_world(transform=transform).to(device)
        model = Model(make_model(kind, world).net.to(device))
        return make_context(model, world, local, cohort, count)

    whole, done = run_stages(algorithm, built())
    broken = None
    for _ in done:
        for limit in (0, 1):
            broken, _ = run_stages(algorithm, built(), broken, limit)
            broken = _saved_and_loaded(broken, device)
    expected, found = (dict(tree.leaves(state)) for state in (whole, broken))
    assert expected.keys() == found.keys()
    rounding = 0 if device.type == "cpu" else 1e-8
    for path, value in expected.items():
        if "seconds" not in path[-1]:
            left, right = torch.as_tensor(value), torch.as_tensor(found[path])
            assert left.device == right.device, path
            torch.testing.assert_close(left, right, rtol=rounding, atol=rounding, equal_nan=True, msg=str(path))


def _saved_and_loaded(state, device):
    with TemporaryDirectory() as folder:
        checkpoint = Checkpoint(Path(folder), "fingerprint")
        checkpoint.save({"state": state})
        return checkpoint.load(device)[0]["state"]
