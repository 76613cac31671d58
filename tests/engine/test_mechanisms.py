"""One test holds all mechanisms together: alone, in workers, and as one stack give the same weights."""

from dataclasses import FrozenInstanceError, dataclass, replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import (
    LOCAL,
    assert_mechanisms_agree,
    assert_resumes,
    gap,
    make_context,
    make_model,
    make_world,
    play,
    rounds,
    run_stages,
)

from fedexp import tree
from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedbn import FedBN
from fedexp.algorithms.fedcat import FedCat
from fedexp.algorithms.fedntd import FedNTD
from fedexp.algorithms.fedprox import FedProx
from fedexp.algorithms.scaffold import Scaffold
from fedexp.compression.top_k import TopK
from fedexp.data import Transform
from fedexp.engine import Engine, Hardware, Local
from fedexp.models import Classifier, Model
from fedexp.models.layers import STACKED
from fedexp.models.mcmahan import mcmahan_cnn
from fedexp.models.simple import simple_cnn
from fedexp.server_optimizer.adaptive import Adam
from fedexp.world import World

ALGORITHMS = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(mu=0.5),
    "scaffold": Scaffold(),
    "fedcat": FedCat(),
    "fedcat_gc": FedCat(concatenation=False),
    "fedcat_dc": FedCat(grouping=False),
    "fedbn": FedBN(),
    "centralized": Centralized(),
    "parts": FedAvg(server_optimizer=Adam(), compression=TopK(share=0.2)),
}


def one_round(algorithm, world, model, mechanism="workers", cohort=3, local=LOCAL, **hardware):
    """The State after a round, with any settings of the hardware."""
    settings = Hardware(device="cpu", engine=mechanism, **{"workers": "1", **hardware})
    ctx = make_context(model, world, local, cohort)
    ctx = replace(ctx, hardware=settings, engine=Engine(model, world, local, settings, ctx.seed))
    return rounds(algorithm, ctx, 1)[0].after


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_stack_equals_one_by_one(name, kind):
    """Unequal clients, momentum, weight decay, clipping, dropout and batch statistics; float64."""
    assert_mechanisms_agree(ALGORITHMS[name], kind)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_stack_equals_one_by_one_in_single_precision(kind):
    alone = play(ALGORITHMS["fedavg"], kind, "workers", dtype=torch.float32)
    stack = play(ALGORITHMS["fedavg"], kind, "vectorized", dtype=torch.float32)
    assert gap(alone, stack) < 1e-4


@pytest.mark.parametrize("make", [mcmahan_cnn, simple_cnn], ids=lambda make: make.__name__)
def test_models_of_the_papers_train_alike_on_colour_images(make):
    """Convolutions over channels-last images give gradients in another memory format than their weights'."""
    world, states = make_world(sizes=[16, 24], shape=(3, 32, 32)), []
    for mechanism in ("workers", "vectorized"):
        torch.manual_seed(3)
        states.append(one_round(FedAvg(), world, Model(make((3, 32, 32), 4).double()), mechanism, cohort=2))
    assert gap(*states) < 1e-9


@dataclass(frozen=True, kw_only=True)
class Reviewing(FedAvg):
    """Clients send and keep the accuracy of their trained models on their own examples."""

    def memory(self, ctx, params):
        return {"right": torch.zeros(ctx.world.classes, dtype=ctx.world.dtype)}

    def inspect(self, model, download, memory, examples):
        return {"before": memory["right"].sum()}

    def review(self, model, params, client, examples):
        right = torch.zeros_like(client.memory["right"])
        for x, y in examples.batches():
            right = right.index_add(0, y, (model(params, x, training=False).argmax(1) == y).to(right))
        return {"right": right}

    def upload(self, params, client):
        return {**super().upload(params, client), **client.found}

    def remember(self, params, client):
        return {"right": client.found["right"]}


@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
def test_what_clients_compute_after_training_is_of_their_trained_models(mechanism):
    world = make_world(sizes=[5, 9, 14, 8])
    model = make_model("norm", world)
    first, second = rounds(Reviewing(), make_context(model, world, LOCAL, 4, engine=mechanism), 2)
    for done in (first, second):
        for row, client in enumerate(done.ids.tolist()):
            params = {name: leaf[row] for name, leaf in done.models.items()}
            x, y = world.prepare(world.of(client)), world.y[world.of(client)]
            hits = model(params, x, training=False).argmax(1) == y
            assert done.uploads["right"][row].tolist() == torch.bincount(y[hits], minlength=world.classes).tolist()
    before = dict(zip(first.ids.tolist(), first.uploads["right"].sum(1).tolist()))
    assert dict(zip(second.ids.tolist(), second.uploads["before"].tolist())) == before


def test_what_clients_compute_after_training_agrees_and_resumes():
    assert_mechanisms_agree(Reviewing())
    assert_resumes(Reviewing(), "linear")


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcat", "fedbn", "parts"])
def test_workers_equal_this_process(name):
    """Two worker processes of one thread each, against this process with all its threads."""
    alone = play(ALGORITHMS[name], "norm", "workers", dtype=torch.float32)
    workers = play(ALGORITHMS[name], "norm", "workers", workers=2, dtype=torch.float32)
    assert gap(alone, workers) < 1e-5


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 3},
        {"drop_last": True},
        {"optimizer": "adam", "momentum": 0.0},
        {"momentum": 0.0, "max_grad_norm": None},
    ],
    ids=str,
)
def test_local_settings_agree(change):
    local = Local(**{**vars(LOCAL), **change})
    assert_mechanisms_agree(ALGORITHMS["fedprox"], "norm", local=local)


class Masked(nn.Module):
    """With a mask of truth values and a weight that is a single number."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mask", torch.arange(64) % 3 > 0)

    def forward(self, x):
        return x.mean(1).flatten(1) * self.mask * self.scale


def test_masks_stay_and_single_numbers_are_trained_and_clipped(monkeypatch):
    import worlds

    def masked(*arguments):
        torch.manual_seed(0)
        return Model(Classifier(Masked(), nn.Linear(64, 4)).double())

    monkeypatch.setattr(worlds, "make_model", masked)
    local, found = Local(**{**vars(LOCAL), "max_grad_norm": 0.1}), []
    for mechanism in ("workers", "vectorized"):
        params = dict(worlds.play(FedAvg(), mechanism=mechanism, local=local)["params"])
        assert params.pop("encoder.mask").equal(torch.arange(64) % 3 > 0) and float(params["encoder.scale"]) != 1.5
        found.append({"params": params})
    assert gap(*found) < 1e-9


def test_augmentation_agrees():
    transform = Transform(mean=[0.5], std=[0.25], crop=8, pad=2, pad_mode="reflect", flip=True, rotate=10.0)
    assert_mechanisms_agree(FedAvg(), transform=transform)
    assert gap(play(FedAvg(), transform=transform), play(FedAvg())) > 1e-3


def test_part_of_the_cohort_at_once_agrees():
    """hardware.clients_at_once bounds memory and changes nothing."""
    world = make_world()
    model = make_model("norm", world)
    whole = one_round(Scaffold(), world, model, "vectorized", cohort=5)
    assert gap(whole, one_round(Scaffold(), world, model, "vectorized", cohort=5, clients_at_once="2")) < 1e-12


@dataclass(frozen=True, kw_only=True)
class Teacher(FedAvg):
    """Sends a tensor of a shape that nothing else has, the same to all."""

    def download(self, state, ids, ctx):
        teacher = torch.full((5, 7, 11), 0.01, dtype=torch.float64)
        return {**super().download(state, ids, ctx), **tree.spread({"teacher": teacher}, len(ids))}

    def loss(self, model, params, batch, client):
        return super().loss(model, params, batch, client) * client.download["teacher"].sum()


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
        one = play(Teacher(), mechanism="vectorized")
    assert copies.count == 0
    assert gap(one, play(Teacher())) < 1e-9


def test_running_out_of_memory_halves_the_cohort_and_goes_on(caplog):
    """A world that cannot prepare more than two clients' batches at once: 5, then 3, then 2 are tried."""

    class SmallWorld(World):
        def prepare(self, rows, keys=None):
            if rows.dim() == 3 and rows.shape[1] > 2:  # steps, clients, examples
                raise torch.OutOfMemoryError("too much")
            return super().prepare(rows, keys)

    roomy = make_world()
    small = SmallWorld(**{name: getattr(roomy, name) for name in roomy.__dataclass_fields__})
    model = make_model("cnn", roomy)
    states = [one_round(FedAvg(), world, model, "vectorized", cohort=5) for world in (roomy, small)]
    assert gap(*states) < 1e-12
    assert "going on with 3" in caplog.text
    assert "going on with 2" in caplog.text


@pytest.mark.parametrize("algorithm", [FedAvg(), FedNTD()])  # FedNTD's loss also evaluates the received model
@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
def test_bfloat16_trains_nearly_alike(mechanism, algorithm):
    """Autocast: not the same numbers as float32, but close to them, with BatchNorm and without."""
    world = make_world(dtype=torch.float32)
    for kind in ("cnn", "norm"):
        model = make_model(kind, world, torch.float32)
        states = [
            one_round(algorithm, world, model, mechanism, precision=precision) for precision in ("float32", "bfloat16")
        ]
        assert 0 < gap(*states) < 0.1
        assert all(value.dtype == torch.float32 for value in states[1]["params"].values())


@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
def test_frozen_parameters_are_not_trained(mechanism):
    """A client returns a frozen convolution and a frozen batch norm's weights as they were, and trains the rest."""
    world = make_world()
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4).requires_grad_(False), nn.Flatten(), nn.Linear(144, 9))
    body[0].weight.requires_grad_(False)
    model = Model(Classifier(body, nn.Linear(9, world.classes)).double())
    params = model.params()
    trained = one_round(FedAvg(), world, model, mechanism, cohort=1)["params"]
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


@pytest.mark.parametrize(("mechanism", "used"), [("workers", {"encoder.3": 4}), ("vectorized", {})])
def test_a_gpu_s_forms_of_convolutions_are_not_used_on_a_cpu(mechanism, used):
    """A run may be resumed on another kind of machine than it began on."""
    world = make_world()
    engine = Engine(make_model("cnn", world), world, LOCAL, Hardware(device="cpu", engine=mechanism), seed=0)
    engine.use_tiles({"encoder.0": STACKED, "encoder.3": 4})
    assert engine.training.tiles == used


@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    def loss(self, model, params, batch, client):
        raise ZeroDivisionError("broken on purpose")


def test_a_failing_worker_says_what_failed():
    """An error in a client's loss reaches the user with its traceback; the workers end."""
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL, workers=2)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        rounds(Broken(), ctx, 1)
    assert ctx.engine.pools == []


class Undecorated(FedAvg):
    """Of which the dataclass's own protection knows nothing."""

    def loss(self, model, params, batch, client):
        self.seen = batch.y
        return super().loss(model, params, batch, client)


@dataclass(frozen=True, kw_only=True)
class InAHook(FedAvg):
    """hook: the one that sets an attribute."""

    hook: str

    def download(self, state, ids, ctx):
        self._set("download")
        return super().download(state, ids, ctx)

    def upload(self, params, client):
        self._set("upload")
        return super().upload(params, client)

    def aggregate(self, state, ids, uploads, ctx, gen):
        self._set("aggregate")
        return super().aggregate(state, ids, uploads, ctx, gen)

    def _set(self, hook):
        if hook == self.hook:
            self.mu = 0.5


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "algorithm", [Undecorated(), InAHook(hook="download"), InAHook(hook="upload"), InAHook(hook="aggregate")],
    ids=lambda each: getattr(each, "hook", "undecorated"),
)  # fmt: skip
def test_an_attribute_that_is_set_in_a_hook_is_an_error(algorithm, workers):
    """What a client's process sets, the server's does not see, nor the next client's: the results would differ by the
    number of workers."""
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL, workers=workers)
    with pytest.raises((FrozenInstanceError, RuntimeError), match="cannot assign to"):
        rounds(algorithm, ctx, 1)
    ctx.engine.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_gpu_agrees_with_cpu(kind, name):
    world, states = make_world(), []
    for device, mechanism in (("cpu", "workers"), ("cuda", "vectorized")):
        there = world.to(torch.device(device))
        net = Model(make_model(kind, world).net.to(device))
        ctx = make_context(net, there, LOCAL, rounds=2, engine=mechanism)
        state = run_stages(ALGORITHMS[name], replace(ctx, hardware=replace(ctx.hardware, device=device)))[0]
        states.append({"params": {name: value.cpu() for name, value in state["params"].items()}})
    assert gap(*states) < 1e-8
