"""Top-k: two rounds by hand, bytes, what error feedback keeps, the neutral setting, mechanisms, resume."""

import pytest
import torch
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
    start,
)

from fedexp.algorithms.fedavg import FedAvg
from fedexp.compression.top_k import TopK
from fedexp.engine import client_rows
from fedexp.errors import ConfigError
from fedexp.selection.full import Full

KEY = torch.tensor(0)


def entries(first, second):
    """An update of two entries of the model."""
    return {"a": torch.tensor([first]), "b": torch.tensor(second)}


def test_two_rounds_by_hand():
    """3, -1, .5, -2: the two largest cross; of 1, -1, .25, 0 next, with what was left, 1 and -2."""
    half, update = TopK(share=0.5), entries([3.0, -1.0], [0.5, -2.0])
    payload, memory = half.encode(update, half.init(update), KEY)
    assert dict(zip(payload["places"].tolist(), payload["values"].tolist())) == {0: 3.0, 3: -2.0}
    assert half.decode(payload, update)["a"].tolist() == [[3.0, 0.0]]
    assert half.decode(payload, update)["b"].tolist() == [0.0, -2.0]
    assert memory["error"]["a"].tolist() == [[0.0, -1.0]] and memory["error"]["b"].tolist() == [0.5, 0.0]
    payload, memory = half.encode(entries([1.0, -1.0], [0.25, 0.0]), memory, KEY)
    assert dict(zip(payload["places"].tolist(), payload["values"].tolist())) == {0: 1.0, 1: -2.0}
    assert memory["error"]["a"].tolist() == [[0.0, 0.0]] and memory["error"]["b"].tolist() == [0.75, 0.0]


def test_without_error_feedback_nothing_is_kept():
    half, update = TopK(share=0.5, error_feedback=False), entries([3.0, -1.0], [0.5, -2.0])
    payload, memory = half.encode(update, half.init(update), KEY)
    assert memory == {}
    assert half.decode(payload, update)["b"].tolist() == [0.0, -2.0]


@pytest.mark.parametrize(("share", "count"), [(0.26, 1), (0.4, 2), (1e-9, 1), (1.0, 4)])
def test_how_many_cross(share, count):
    """The nearest whole number, one at least."""
    update = entries([3.0, -1.0], [0.5, -2.0])
    payload, _ = TopK(share=share).encode(update, TopK().init(update), KEY)
    assert len(payload["values"]) == len(payload["places"]) == count


@pytest.mark.parametrize("places", ["packed", "bitmap"])
def test_places_in_other_forms_say_the_same(places):
    """Of 37 entries 6 bits each, or one bit for each of them."""
    draw = torch.Generator().manual_seed(4)
    update = entries(torch.randn(15, generator=draw).tolist(), torch.randn(22, generator=draw).tolist())
    plain, other = TopK(share=0.3), TopK(share=0.3, places=places)
    payload, memory = other.encode(update, other.init(update), KEY)
    assert payload["places"].numel() == {"packed": -(-11 * 6 // 8), "bitmap": -(-37 // 8)}[places]
    expected, kept = plain.encode(update, plain.init(update), KEY)
    for name, read in plain.decode(expected, update).items():
        assert torch.equal(other.decode(payload, update)[name], read)
        assert torch.equal(memory["error"][name], kept["error"][name])


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float64, 8)])
def test_bytes_are_those_of_values_and_int32_places(dtype, size):
    """k (4 + itemsize) of k = a quarter of 196 trained entries a client, and its 8 running statistics as they are."""
    world = make_world(dtype=dtype)
    model = make_model("norm", world, dtype)
    assert sum(model.params()[name].numel() for name in model.weights) == 196
    ctx = make_context(model, world, LOCAL, precision={4: "float32", 8: "float64"}[size])
    for done in rounds(FedAvg(compression=TopK(share=0.25)), ctx, 2):
        assert done.bytes_up == 3 * (49 * (4 + size) + 8 * size)
        assert done.bytes_down == 3 * (196 + 8) * size


def test_a_client_s_error_goes_into_its_next_update():
    """Round by round: what the server reads and what a client keeps are its update and what it had kept before."""
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, LOCAL, cohort=6)
    algorithm, plain = FedAvg(selection=Full(), compression=TopK(share=0.1)), FedAvg(selection=Full())
    state = start(algorithm, ctx)
    before = {name: torch.zeros(6, *leaf.shape, dtype=leaf.dtype) for name, leaf in state["params"].items()}
    for number in range(3):
        (done,) = rounds(algorithm, ctx, 1, state)
        whole = {**start(plain, ctx), "params": state["params"], "round": number}
        (uncompressed,) = rounds(plain, ctx, 1, whole)
        state = done.after
        kept = client_rows.take(state["memory"], torch.arange(6))["compression"]["error"]
        for name, read in done.uploads["update"].items():
            owed = uncompressed.uploads["update"][name] + before[name]
            assert torch.equal(read + kept[name], owed)
            assert not ((read != 0) & (kept[name] != 0)).any(), "an entry crosses as a whole or not at all"
        nonzero = sum((read != 0).flatten(1).sum(1) for read in done.uploads["update"].values())
        assert nonzero.tolist() == [round(0.1 * sum(leaf.numel() for leaf in state["params"].values()))] * 6
        before = {name: leaf.clone() for name, leaf in kept.items()}


def test_the_error_waits_for_a_client_that_is_not_drawn():
    world, algorithm = make_world(), FedAvg(compression=TopK(share=0.1))
    ctx = make_context(make_model("cnn", world), world, LOCAL, cohort=2)
    state, seen, waited = start(algorithm, ctx), set(), 0
    before = torch.zeros(6, 4, 36, dtype=torch.float64)
    for _ in range(5):
        (done,) = rounds(algorithm, ctx, 1, state)
        state = done.after
        kept = client_rows.take(state["memory"], torch.arange(6))["compression"]["error"]["head.weight"].clone()
        absent = sorted(set(range(6)) - set(done.ids.tolist()))
        assert torch.equal(kept[absent], before[absent])
        waited += len(seen.intersection(absent))
        seen.update(done.ids.tolist())
        assert (kept[sorted(seen)].flatten(1).abs().sum(1) > 0).all()
        before = kept
    assert waited > 3


@pytest.mark.parametrize("error_feedback", [False, True])
def test_all_entries_are_fedavg(error_feedback):
    compression = TopK(share=1.0, error_feedback=error_feedback)
    assert gap(play(FedAvg(compression=compression), "norm"), play(FedAvg(), "norm")) == 0


def test_running_statistics_cross_as_they_are():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL)
    sparse, plain = (rounds(algorithm, ctx, 1)[0] for algorithm in (FedAvg(compression=TopK(share=0.05)), FedAvg()))
    for name in ctx.model.buffers:
        assert torch.equal(sparse.after["params"][name], plain.after["params"][name])
    assert gap(sparse.after, plain.after) > 1e-3


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("error_feedback", [False, True])
def test_mechanisms_agree(kind, error_feedback):
    assert_mechanisms_agree(FedAvg(compression=TopK(share=0.1, error_feedback=error_feedback)), kind)


@pytest.mark.parametrize("error_feedback", [False, True])
def test_two_workers_are_one(error_feedback):
    algorithm = FedAvg(compression=TopK(share=0.1, error_feedback=error_feedback))
    assert gap(*(play(algorithm, "norm", workers=count) for count in (1, 2))) < 1e-12


def test_resumes():
    assert_resumes(FedAvg(compression=TopK(share=0.1)), "norm")


def test_settings_are_checked():
    for share in (0.0, -0.1, 1.5):
        with pytest.raises(ConfigError, match=r"compression\.share="):
            TopK(share=share)
