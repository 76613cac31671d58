"""One test holds all mechanisms together: alone, in workers, and as one stack give the same weights."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import LOCAL, assert_mechanisms_agree, gap, make_engine, make_model, make_world, play

from fedexp import tree
from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedcat import FedCat
from fedexp.algorithms.fedprox import FedProx
from fedexp.algorithms.scaffold import Scaffold
from fedexp.data import Transform
from fedexp.engine import Engine, Hardware, Local
from fedexp.engine.apart import Crew
from fedexp.models import Classifier, Model
from fedexp.models.mcmahan import mcmahan_cnn
from fedexp.models.simple import simple_cnn
from fedexp.randomness import generator
from fedexp.world import World

ALGORITHMS = {
    "fedavg": lambda k, local: FedAvg(k, local),
    "fedprox": lambda k, local: FedProx(k, local, mu=0.5),
    "scaffold": lambda k, local: Scaffold(k, local),
    "fedcat": lambda k, local: FedCat(k, local),
    "fedcat_gc": lambda k, local: FedCat(k, local, concatenation=False),
    "fedcat_dc": lambda k, local: FedCat(k, local, grouping=False),
    "centralized": lambda k, local: Centralized(k, local),
}


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_stack_equals_one_by_one(name, kind):
    """Unequal clients, momentum, weight decay, clipping, dropout and batch statistics; float64."""
    assert_mechanisms_agree(ALGORITHMS[name], kind)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_stack_equals_one_by_one_in_single_precision(kind):
    alone = play(ALGORITHMS["fedavg"], kind, "apart", dtype=torch.float32)
    stack = play(ALGORITHMS["fedavg"], kind, "together", dtype=torch.float32)
    assert gap(alone, stack) < 1e-4


@pytest.mark.parametrize("make", [mcmahan_cnn, simple_cnn], ids=lambda make: make.__name__)
def test_models_of_the_papers_train_alike_on_colour_images(make):
    """Convolutions over channels-last images give gradients in another memory format than their weights'."""
    states = []
    for mechanism in ("apart", "together"):
        world = make_world(sizes=[16, 24], shape=(3, 32, 32))
        torch.manual_seed(3)
        model = Model(make((3, 32, 32), 4).double())
        algorithm = FedAvg(2, LOCAL)
        engine = make_engine(model, world, LOCAL, mechanism)
        state = algorithm.init(world, model, model.params())
        states.append(algorithm.round(state, world, engine, generator(0, "round", 0)))
        engine.close()
    assert gap(*states) < 1e-9


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcat"])
def test_workers_equal_this_process(name):
    """Two worker processes of one thread each, against this process with all its threads."""
    alone = play(ALGORITHMS[name], "norm", "apart", dtype=torch.float32)
    workers = play(ALGORITHMS[name], "norm", "apart", workers=2, dtype=torch.float32)
    assert gap(alone, workers) < 1e-5


@pytest.mark.parametrize(
    "change",
    [{"steps": 3}, {"drop_last": True}, {"optimizer": "adam"}, {"momentum": 0.0, "max_grad_norm": None}],
    ids=str,
)
def test_local_settings_agree(change):
    local = Local(**{**vars(LOCAL), **change})
    assert_mechanisms_agree(ALGORITHMS["fedprox"], "norm", local=local)


def test_augmentation_agrees():
    transform = Transform(mean=[0.5], std=[0.25], crop=8, pad=2, pad_mode="reflect", flip=True, rotate=10.0)
    make = ALGORITHMS["fedavg"]
    assert_mechanisms_agree(make, transform=transform)
    assert gap(play(make, transform=transform), play(make)) > 1e-3


def test_part_of_the_cohort_at_once_agrees():
    """hardware.clients_at_once bounds memory and changes nothing."""
    world = make_world()
    model = make_model("norm", world)
    states = []
    for at_once in ("auto", "2"):
        hardware = Hardware(device="cpu", engine="together", clients_at_once=at_once)
        engine, algorithm = Engine(model, world, LOCAL, hardware, seed=0), Scaffold(5, LOCAL)
        state = algorithm.init(world, model, model.params())
        states.append(algorithm.round(state, world, engine, generator(0, "round", 0)))
    assert gap(*states) < 1e-12


class Teacher(FedAvg):
    """Sends a tensor of a shape that nothing else has, the same to all."""

    def send(self, state, ids):
        teacher = torch.full((5, 7, 11), 0.01, dtype=torch.float64)
        return super().send(state, ids)._replace(extra=tree.spread({"teacher": teacher}, len(ids)))

    def loss(self, model, params, batch, sent):
        return super().loss(model, params, batch, sent) * sent.extra["teacher"].sum()


class Copies(TorchDispatchMode):
    """Counts results that hold a teacher for every client."""

    count = 0

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        result = operation(*arguments, **(named or {}))
        if isinstance(result, torch.Tensor) and result.shape[-3:] == (5, 7, 11):
            self.count += result.stride(0) != 0 and len(result) == 3
        return result


def test_what_all_clients_receive_is_one_in_memory():
    with Copies() as copies:
        one = play(Teacher, mechanism="together")
    assert copies.count == 0
    assert gap(one, play(Teacher, mechanism="apart")) < 1e-9


def test_running_out_of_memory_halves_the_cohort_and_goes_on(capfd):
    """A world that cannot prepare more than two clients' batches at once: 5, then 3, then 2 are tried."""

    class SmallWorld(World):
        def prepare(self, rows, keys=None):
            if len(rows) > 2:
                raise torch.OutOfMemoryError("too much")
            return super().prepare(rows, keys)

    roomy = make_world()
    small = SmallWorld(**{name: getattr(roomy, name) for name in roomy.__dataclass_fields__})
    model = make_model("cnn", roomy)
    states = []
    for world in (roomy, small):
        engine, algorithm = make_engine(model, world, LOCAL, "together"), FedAvg(5, LOCAL)
        state = algorithm.init(world, model, model.params())
        states.append(algorithm.round(state, world, engine, generator(0, "round", 0)))
    assert gap(*states) < 1e-12
    output = capfd.readouterr().out
    assert "going on with 3" in output
    assert "going on with 2" in output


@pytest.mark.parametrize("mechanism", ["apart", "together"])
def test_bfloat16_trains_nearly_alike(mechanism):
    """Autocast: not the same numbers as float32, but close to them, with BatchNorm and without."""
    world = make_world(dtype=torch.float32)
    for kind in ("cnn", "norm"):
        model = make_model(kind, world, torch.float32)
        states = []
        for precision in ("float32", "bfloat16"):
            hardware = Hardware(device="cpu", workers="1", precision=precision, engine=mechanism)
            engine = Engine(model, world, LOCAL, hardware, seed=0)
            algorithm = FedAvg(3, LOCAL)
            state = algorithm.init(world, model, model.params())
            states.append(algorithm.round(state, world, engine, generator(0, "round", 0)))
        assert 0 < gap(*states) < 0.1
        assert all(value.dtype == torch.float32 for value in states[1]["params"].values())


@pytest.mark.parametrize("mechanism", ["apart", "together"])
def test_frozen_parameters_are_not_trained(mechanism):
    """A client returns a frozen convolution and a frozen batch norm's weights as they were, and trains the rest."""
    world = make_world()
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4).requires_grad_(False), nn.Flatten(), nn.Linear(144, 9))
    body[0].weight.requires_grad_(False)
    model = Model(Classifier(body, nn.Linear(9, world.classes)).double())
    algorithm, params = FedAvg(1, LOCAL), model.params()
    engine = make_engine(model, world, LOCAL, mechanism)
    trained = algorithm.round(algorithm.init(world, model, params), world, engine, generator(0, "round", 0))["params"]
    frozen = {"encoder.0.weight", "encoder.1.weight", "encoder.1.bias"}
    assert {name for name in params if torch.equal(trained[name], params[name])} == frozen
    assert set(model.weights).isdisjoint(frozen)


def test_tf32_ends_with_its_engine():
    """An engine in float32 after one in tf32, in the same process, multiplies in float32."""
    world = make_world()
    model = make_model("cnn", world)
    for precision, expected in (("tf32", "high"), ("float32", "highest")):
        Engine(model, world, LOCAL, Hardware(device="cpu", precision=precision), seed=0)
        assert torch.get_float32_matmul_precision() == expected
        assert torch.backends.cudnn.allow_tf32 == (precision == "tf32"), "of convolutions on GPUs"
        assert torch.backends.cudnn.deterministic


def test_a_failing_worker_says_what_failed():
    """An error in a client's loss reaches the user with its traceback; the workers end."""

    class Broken(FedAvg):
        def loss(self, model, params, batch, sent):
            raise ZeroDivisionError("broken on purpose")

    world = make_world()
    model = make_model("cnn", world)
    engine, algorithm = make_engine(model, world, LOCAL, workers=2), Broken(3, LOCAL)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        algorithm.round(algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0))
    assert engine.crew is None


class Slow(FedAvg):
    def loss(self, model, params, batch, sent):
        print("training", flush=True)
        time.sleep(0.2)
        return super().loss(model, params, batch, sent)


SLOW_RUN = """
from test_mechanisms import Local, Slow, generator, make_engine, make_model, make_world

world, local = make_world(), Local(steps=300)
model, algorithm = make_model("cnn", world), Slow(3, local)
engine = make_engine(model, world, local, workers=2)
algorithm.round(algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0))
"""


def test_workers_end_soon_after_their_server_was_killed():
    """In the middle of a client's training; the pipe that they write to closes when the last of them ends."""
    folder = Path(__file__).parent
    paths = os.pathsep.join([str(folder), str(folder.parent), *sys.path])
    server = subprocess.Popen(
        [sys.executable, "-c", SLOW_RUN], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert server.stdout.readline().startswith("training")
    server.kill()
    server.communicate(timeout=20)


@pytest.mark.parametrize("answered", [False, True])
def test_a_worker_that_nobody_listens_to_ends_quietly(answered, capfd):
    """As when a sibling has failed: what failed is reported once, without tracebacks of broken pipes."""
    world = make_world()
    model, algorithm = make_model("cnn", world), Slow(1, LOCAL)
    engine = make_engine(model, world, Local(steps=2))
    crew = Crew(engine.shop, algorithm, algorithm.send({"params": model.params()}, torch.tensor([0])), 1)
    crew.pipes[0].send((0, [0], [0]))
    assert not answered or crew.pipes[0].poll(60)
    crew.pipes[0].close()
    crew.workers[0].join(timeout=60)
    assert crew.workers[0].exitcode == 0
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_gpu_agrees_with_cpu(kind):
    world, states = make_world(), []
    for device, mechanism in (("cpu", "apart"), ("cuda", "together")):
        there = world.to(torch.device(device))
        net = Model(make_model(kind, world).net.to(device))
        engine = Engine(net, there, LOCAL, Hardware(device=device, engine=mechanism, workers="1"), seed=0)
        algorithm = FedAvg(3, LOCAL)
        state = algorithm.init(there, net, net.params())
        for round in range(2):
            state = algorithm.round(state, there, engine, generator(0, "round", round))
        states.append({"params": {name: value.cpu() for name, value in state["params"].items()}})
    assert gap(*states) < 1e-8
