"""Local steps as CUDA graphs: replayed, they do what they do when launched one by one."""

import pytest
import torch
from composing import checked
from options import ALGORITHMS, words_of
from worlds import gap, make_context, make_model, make_world, rounds, run_stages

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.building import build_algorithm, build_context, build_dataset
from fedexp.engine import Local, convolutions
from fedexp.models import Model
from fedexp.models.layers import STACKED, Convolution

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
_UNEQUAL = ["partition=dir0.5", "partition.construction=class_split", "local.steps=null", "local.epochs=2", "rounds=3"]


def ended(name, *words):
    """The State at the end of a run of an algorithm, whose clients are of several sizes."""
    words = [*words_of(name), *_UNEQUAL, "model.hidden=8", "hardware.engine=vectorized", *words]
    if "model=resnet9" in words:
        words = [word for word in words if not word.startswith("model") or word == "model=resnet9"]
    config = checked(*words)
    return run_stages(build_algorithm(config), build_context(config, build_dataset(config)))[0]


def assert_same_bits(first, second):
    first, second = (dict(tree.leaves(state)) for state in (first, second))
    assert first.keys() == second.keys()
    for path, value in first.items():
        if "seconds" not in path[-1]:
            left, right = torch.as_tensor(value), torch.as_tensor(second[path])
            torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True, msg=str(path))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_graphs_equal_single_launches_and_the_cpu(name):
    """In double precision: replayed and launched steps to the bit, and a CPU's up to rounding."""
    replayed = ended(name, "hardware.precision=float64", "hardware.device=cuda")
    launched = ended(name, "hardware.precision=float64", "hardware.device=cuda", "hardware.cuda_graphs=false")
    assert_same_bits(replayed, launched)
    cpu = ended(name, "hardware.precision=float64", "hardware.device=cpu")
    # The distances that CADIS and FedGen compute lose half of all digits where vectors are nearly equal.
    bound = 1e-5 if name.startswith(("cadis", "fedgen")) else 1e-8
    assert gap({"params": tree.to(replayed["params"], torch.device("cpu"))}, cpu) < bound


@pytest.mark.parametrize("name", ALGORITHMS)
def test_stacked_convolutions_equal_direct_ones(monkeypatch, name):
    """In single precision, up to rounding; and a run repeats itself to the bit."""
    words = ["hardware.device=cuda", "hardware.precision=float32", "rounds=1", "local.epochs=1"]
    direct = ended(name, *words, "hardware.convolution=direct")

    def all_stacked(model, *_):
        return {layer.path: STACKED for layer in model.net.modules() if isinstance(layer, Convolution)}

    monkeypatch.setattr(convolutions, "measured_in_stack", all_stacked)
    stacked = ended(name, *words)
    assert set(stacked["tiles"].values()) == {STACKED} or name.startswith("fedconcat")  # whose last stage has none
    # In these three, rounding grows to percents within a round; so it does from a change of 1e-6 in the first weights.
    assert gap(stacked, direct) < 1e-3 or name in ("cadis", "feddecorr", "fedlc")
    assert_same_bits(stacked, ended(name, *words))


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize(
    "more",
    [[], ["local.optimizer=adam", "local.lr=0.001"], ["local.lr_decay=0.5"], ["local.max_grad_norm=0.1"],
     ["hardware.clients_at_once=1"], ["model=resnet9", "dataset.shape=[3,32,32]"], ["dataset.transform.flip=true"]],
    ids=" ".join,
)  # fmt: skip
def test_a_run_repeats_itself_to_the_bit(precision, more):
    words = [f"hardware.precision={precision}", "hardware.device=cuda", *more]
    once = ended("fedavg", *words)
    assert_same_bits(once, ended("fedavg", *words))
    assert_same_bits(once, ended("fedavg", *words, "hardware.cuda_graphs=false"))


def test_a_compiled_step_is_recorded_too():
    words = ["hardware.precision=float64", "hardware.device=cuda"]
    assert gap(ended("fedavg", *words, "hardware.compile=true"), ended("fedavg", *words)) < 1e-8


def test_each_number_of_active_clients_is_recorded_once():
    """Three clients of 3, 2 and 1 steps: all three sizes of a step are met in the first round, recorded in the second
    and replayed in the third."""
    world = make_world([24, 16, 8], dtype=torch.float32).to(torch.device("cuda"))
    model = Model(make_model("cnn", world, torch.float32).net.to("cuda"))
    ctx = make_context(model, world, Local(epochs=1, batch_size=8), 3, 3, "vectorized", precision="float32")
    for count, recorded in ((1, 0), (2, 3), (3, 3)):
        rounds(FedAvg(), ctx, count)
        ((_, recording),) = ctx.engine.training.recordings.known
        assert sorted(active for active, *_ in recording.graphs) == [1, 2, 3]
        assert sum(graph is not None for graph, _ in recording.graphs.values()) == recorded
        ctx.engine.training.recordings.forget()
