"""A vectorized cohort's local step: few kernels, none of which needs the host."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from composing import checked
from options import ALGORITHMS, words_of
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import gap, make_context, make_model, make_world, rounds, run_stages

from fedexp.algorithms.fedavg import FedAvg
from fedexp.building import build_algorithm, build_context, build_dataset
from fedexp.engine import Engine, Hardware, Local
from fedexp.errors import ConfigError
from fedexp.models import Model
from fedexp.models.mcmahan import mcmahan_cnn

_FREE = ("empty", "detach", "expand", "view", "alias", "reshape")  # allocate, or give another view


class Kernels(TorchDispatchMode):
    """Counts the operations that a GPU would be sent a kernel for."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        name = operation.overloadpacket.__name__
        if not operation.is_view and not any(word in name for word in _FREE):
            self.count[name] += 1
        return operation(*arguments, **(named or {}))


def kernels(steps):
    """Of a round of so many local steps of four clients with mcmahan_cnn."""
    world = make_world([200] * 4, 10, (1, 28, 28), torch.float32)
    local = Local(steps=steps, batch_size=50, momentum=0.9)
    ctx = make_context(Model(mcmahan_cnn((1, 28, 28), 10)), world, local, 4, 1, "vectorized", precision="float32")
    with Kernels() as kernels:
        rounds(FedAvg(), ctx, 1)
    return kernels.count


def test_a_local_step_is_at_most_50_kernels():
    """All but what is done once for many steps: examples are prepared together."""
    more = kernels(3) - kernels(2)
    more -= Counter(all=1, _local_scalar_dense=1)  # on the CPU as the round is laid out: whether a step is padded
    assert 40 < more.total() <= 50, more
    assert not more.keys() & {"fill_", "ne", "scalar_tensor", "copy_", "_to_copy", "item"}, more


def copies(steps):
    """The shapes of all tensors of four dimensions that so many steps of a worker's client copy before and after
    PyTorch's own backward pass."""
    words = ["dataset=made", "dataset.shape=[3,16,16]", "dataset.train=40", "dataset.test=8", "partition=iid"]
    words += ["clients=1", "clients_per_round=1", "rounds=1", "model=simple_cnn", "hardware=cpu", "hardware.workers=1"]
    words += ["local.batch_size=8", f"local.steps={steps}", "local.momentum=0.9", "hardware.convolution=direct"]
    config = checked(*words)
    ctx = build_context(config, build_dataset(config))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        run_stages(build_algorithm(config), ctx)
    copied = [each.input_shapes[0] for each in found.events() if each.name == "aten::copy_" and not backward(each)]
    return Counter(tuple(shape) for shape in copied if len(shape) == 4)


def backward(event):
    """Whether an event is within a backward pass."""
    return event.cpu_parent is not None and ("Backward" in event.cpu_parent.name or backward(event.cpu_parent))


def test_a_worker_copies_images_once_a_step_and_weights_never():
    """Bytes become numbers, once; from there on all of it lies in memory as convolutions and the optimizer take it."""
    assert copies(4) - copies(2) == Counter({(8, 3, 16, 16): 2})


_ALWAYS = ("fedavg", "scaffold", "fedsam")  # the last takes a gradient within its loss


@pytest.mark.parametrize(
    "name", [name if name in _ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS]
)
def test_a_local_step_is_traced_whole(monkeypatch, name):
    """torch.compile finds nothing in it that needs the host, for no algorithm; and it does the same."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # traced, not translated
    words = [*words_of(name), "hardware.engine=vectorized", "hardware.precision=float64", "model.hidden=8"]
    states = []
    for compiled in ("false", "true"):
        config = checked(*words, f"hardware.compile={compiled}")
        states.append(run_stages(build_algorithm(config), build_context(config, build_dataset(config)))[0])
    assert gap(*states) < 1e-9


def test_a_step_is_compiled_for_any_number_of_clients(monkeypatch):
    """PyTorch alone compiles a function eight times at most. Here nine clients end one after another."""
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    world = make_world([8 * size for size in range(1, 10)])
    ctx = make_context(make_model("linear", world), world, Local(epochs=1, batch_size=8), 9, engine="vectorized")
    plain = rounds(FedAvg(), ctx, 1)[-1].after
    ctx = replace(ctx, hardware=replace(ctx.hardware, compile=True)).ready()
    assert gap(rounds(FedAvg(), ctx, 1)[-1].after, plain) < 1e-9
    assert len(compiled) == 9


def test_workers_steps_are_not_compiled():
    world = make_world()
    settings = Hardware(device="cpu", engine="workers", compile=True)
    with pytest.raises(ConfigError, match=r"hardware\.compile=true.*hardware\.engine=vectorized"):
        Engine(make_model("cnn", world), world, Local(), settings, seed=0)
