"""Small worlds that tests train in: made data, or scikit-learn's digits; nothing is downloaded."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import nn

from fedexp import tree
from fedexp.data import Dataset, Transform
from fedexp.engine import Engine, Hardware, Local
from fedexp.models import Classifier, Model
from fedexp.randomness import generator
from fedexp.record.checkpoint import Checkpoint
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
    torch.manual_seed(3)
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


def make_engine(model, world, local=None, engine="apart", workers=1, seed=0) -> Engine:
    hardware = Hardware(device="cpu", engine=engine, workers=str(workers))
    return Engine(model, world, local or Local(epochs=2, batch_size=8, lr=0.1), hardware, seed)


def by_hand(model, params, world, client, lr):
    """One full-batch gradient step of a client on the linear model, by autograd on the ordinary formula."""
    weight, bias = (params[name].clone().requires_grad_() for name in ("head.weight", "head.bias"))
    rows = world.of(client)
    x = (world.x[rows].double() / 255).flatten(1)
    F.cross_entropy(x @ weight.T + bias, world.y[rows]).backward()
    return {"head.weight": (weight - lr * weight.grad).detach(), "head.bias": (bias - lr * bias.grad).detach()}


LOCAL = Local(epochs=2, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-3, lr_decay=0.9, max_grad_norm=1.0)


def play(make, kind="cnn", mechanism="apart", workers=1, dtype=torch.float64, local=LOCAL, transform=None, count=3):
    """The State after `count` rounds of make(clients_per_round, local) in the small world."""
    algorithm = make(3, local)
    shape = (1 if kind == "linear" else 3, 8, 8)  # colours: memory formats differ from one channel's
    world = algorithm.adapt(make_world(shape=shape, dtype=dtype, transform=transform))
    model = make_model(kind, world, dtype)
    engine = make_engine(model, world, local, mechanism, workers)
    state = algorithm.prepare(algorithm.init(world, model, model.params()), world, engine)
    for round in range(count):
        state = algorithm.round(state, world, engine, generator(0, "round", round))
    engine.close()
    return state


def gap(first, second):
    """Largest difference between two States' params, relative to the largest entry of each tensor."""
    first, second = first["params"], second["params"]
    return max(float((first[name] - second[name]).abs().max() / first[name].abs().max()) for name in first)


def assert_mechanisms_agree(make, kind="cnn", **settings):
    """One by one and as one stack: the same weights to 1e-9 in float64."""
    alone = play(make, kind, "apart", **settings)
    stack = play(make, kind, "together", **settings)
    assert gap(alone, stack) < 1e-9


def assert_resumes(make, kind="cnn", local=LOCAL, count=4):
    """A run that goes on from its checkpoint after every round, with everything else built anew, ends the same.

    Columns of seconds apart, every number and tensor is bit-equal; on a GPU, where there is one, up to rounding.
    """
    _assert_resumes(torch.device("cpu"), make, kind, local, count)
    if torch.cuda.is_available():
        _assert_resumes(torch.device("cuda"), make, kind, local, count)


def _assert_resumes(device, make, kind, local, count):
    def built():
        world = make_world().to(device)
        model = Model(make_model(kind, world).net.to(device))
        return world, model, make_engine(model, world, local)

    world, model, engine = built()
    algorithm = make(3, local)
    whole = broken = algorithm.init(world, model, model.params())
    broken = _saved_and_loaded(broken, device)
    for round in range(count):
        whole = algorithm.round(whole, world, engine, generator(0, "round", round))
        fresh, _, fresh_engine = built()
        broken = make(3, local).round(broken, fresh, fresh_engine, generator(0, "round", round))
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
