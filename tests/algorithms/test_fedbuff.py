"""FedBuff: a case computed by hand, who arrives when, reductions to FedAvg, bytes, and what it refuses."""

from dataclasses import dataclass, replace
from math import sqrt

import pytest
import torch
from quadratics import NAME, Quadratic, pair, weight
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

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedbuff import FedBuff
from fedexp.compression.qsgd import Qsgd
from fedexp.compression.top_k import TopK
from fedexp.errors import ConfigError
from fedexp.round import personal_models
from fedexp.selection.clusamp import CluSamp
from fedexp.selection.full import Full
from fedexp.selection.uniform import Uniform
from fedexp.server_optimizer.momentum import Momentum
from fedexp.system.devices import Devices
from fedexp.system.none import Ideal

EQUAL = Devices(speed_spread=0.0, bandwidth_spread=0.0)


@dataclass(frozen=True)
class Timed(Devices):
    """Devices that take so many seconds, whatever they do."""

    durations: tuple[float, ...] = ()

    def seconds(self, client, examples, down, up, ctx, number):
        return self.durations[client]


@dataclass(frozen=True, kw_only=True)
class Constant(FedBuff):
    """Client k's loss is c_k w: its update is -0.1 c_k, wherever it starts."""

    concurrency: int | None = 2
    system: Ideal = Timed(durations=(1.0, 2.5))

    def loss(self, model, params, batch, client):
        return batch.mean((params[NAME].flatten() * batch.x.flatten(1)).sum(1))


def flow(count=4, **settings):
    """So many rounds of clients whose updates are -0.1 and 0.3, from w = 1."""
    return rounds(Constant(**settings), pair(centers=(1.0, -3.0)), count)


def test_the_case_computed_by_hand():
    """A takes 1 s and B 2.5 s; at t = 5 both arrive, A fills the buffer, and B is stale by the step just taken."""
    done = flow()
    assert [weight(each.after["params"]) for each in done] == pytest.approx(
        [0.9, 0.956066, 0.856066, 0.892669], abs=1e-6
    )
    assert [each.after["clock"] for each in done] == [2.0, 3.0, 5.0, 6.0]
    assert [each.ids.tolist() for each in done] == [[0, 0], [1, 0], [0, 0], [1, 0]]
    stale = [(each.before["round"] - each.before["arriving"]["version"]).tolist() for each in done]
    assert stale == [[0, 0], [1, 0], [0, 0], [2, 0]]
    assert [float(each.after["staleness"]) for each in done] == [0, 0.5, 0, 1]


def test_each_trains_from_the_model_that_was_the_newest_when_it_started():
    """Quadratics around 0 and 4: twice -0.1 from w = 1; then B, which began there too, 0.3, and A, from 0.9, -0.09."""

    class Own(FedBuff, Quadratic):
        """FedBuff over quadratics."""

    first, second = rounds(Own(concurrency=2, system=Timed(durations=(1.0, 2.5))), pair(), 2)
    assert weight(first.after["params"]) == pytest.approx(0.9)
    assert weight(second.after["params"]) == pytest.approx(0.9 + (0.3 / sqrt(2) - 0.09) / 2)


def test_other_scales_by_hand():
    """Round 2 takes 0.3, stale by 1, and -0.1."""
    step = {}
    for name, settings in {
        "alike": {"staleness_power": 0.0}, "linear": {"staleness_power": 1.0}, "scales": {"divided_by": "scales"},
        "momentum": {"server_optimizer": Momentum(beta=0.5)},
    }.items():  # fmt: skip
        first, second = flow(2, **settings)
        assert weight(first.after["params"]) == pytest.approx(0.9)
        step[name] = weight(second.after["params"]) - weight(first.after["params"])
    plain = (0.3 / sqrt(2) - 0.1) / 2
    assert step == pytest.approx({
        "alike": 0.1, "linear": 0.025, "scales": 2 * plain / (1 + 1 / sqrt(2)), "momentum": plain - 0.05,
    })  # fmt: skip


def test_updates_may_count_by_examples():
    """Of 1 and 3 examples: w moves by -0.1 / 4 + 3 * 0.3 / sqrt(2) / 4 in round 2."""
    ctx = pair((1, 3), centers=(1.0, -3.0))
    first, second = rounds(Constant(selection=Uniform(merge="examples")), ctx, 2)
    moved = weight(second.after["params"]) - weight(first.after["params"])
    assert moved == pytest.approx((-0.1 + 3 * 0.3 / sqrt(2)) / 4)


def test_a_buffer_of_three_is_full_when_the_third_arrives():
    """The clients take 1, 2.5 and 10 s; at t = 5 the first two arrive, and the first fills the buffer."""
    algorithm = Constant(concurrency=3, system=Timed(durations=(1.0, 2.5, 10.0)))
    done = rounds(algorithm, pair((1, 1, 1), centers=(1.0, -3.0, 0.0)), 2)
    assert [each.ids.tolist() for each in done] == [[0, 0, 1], [0, 0, 0]]
    assert [each.after["clock"] for each in done] == [2.5, 5.0]


@pytest.mark.parametrize(("clients", "at_once"), [(40, 30), (20, 20)])
def test_by_default_ten_times_as_many_train_at_once_as_the_buffer_holds(clients, at_once):
    world = make_world([1] * clients)
    assert FedBuff().at_once(make_context(make_model("linear", world), world, LOCAL, cohort=3)) == at_once


def same_clients():
    """Six clients of 20 examples, of whom three are drawn; running statistics and dropout."""
    world = make_world([20] * 6)
    return make_context(make_model("norm", world), world, LOCAL)


def test_of_equal_devices_as_many_at_once_as_the_buffer_holds_it_is_fedavg():
    buffered = rounds(FedBuff(concurrency=3, system=EQUAL), same_clients(), 5)
    plain = rounds(FedAvg(system=EQUAL), same_clients(), 5)
    for mine, other in zip(buffered, plain):
        assert sorted(mine.ids.tolist()) == sorted(other.ids.tolist())
        assert gap(mine.after, other.after) < 1e-12
        assert mine.after["clock"] == pytest.approx(other.after["clock"], rel=1e-12)
        assert (mine.bytes_up, mine.bytes_down) == (other.bytes_up, other.bytes_down)


def test_those_who_arrive_at_once_are_replaced_after_the_last_of_them():
    """Four at once, buffers of two: two rounds at each instant, whose second one is stale by the first."""
    ctx = make_context(make_model("linear", make_world([8] * 4)), make_world([8] * 4), LOCAL, cohort=2)
    done = rounds(FedBuff(system=Timed(durations=(1.0,) * 4)), ctx, 6)
    assert [each.ids.tolist() for each in done] == [[0, 1], [2, 3]] * 3
    assert [each.after["clock"] for each in done] == [1, 1, 2, 2, 3, 3]
    assert [float(each.after["staleness"]) for each in done] == [0, 1] * 3


FAR_APART = Devices(speed_spread=2.0, bandwidth_spread=0.0, bandwidth=1e9, jitter=0.3)  # the fastest comes often


def test_one_that_trains_twice_from_one_model_draws_anew():
    done = rounds(FedBuff(concurrency=6, system=FAR_APART), same_clients(), 6)
    twice = 0
    for each in done:
        pairs = {}
        for row, key in enumerate(zip(each.ids.tolist(), each.before["arriving"]["version"].tolist())):
            pairs.setdefault(key, []).append(row)
        for rows in (found for found in pairs.values() if len(found) > 1):
            update = each.uploads["update"]["head.weight"]
            assert not torch.equal(update[rows[0]], update[rows[1]])
            twice += 1
    assert twice


def test_as_many_train_at_once_as_are_asked_for():
    algorithm = FedBuff(concurrency=4, system=FAR_APART)
    done, clock = rounds(algorithm, same_clients(), 8), 0.0
    for each in done:
        state = each.after
        clients = state["training"]["client"].tolist()
        assert len({*clients}) == len(clients) <= 4  # those who arrive at an instant's end are not yet replaced
        assert float(state["training"]["due"].min()) >= float(state["arriving"]["due"].max()) >= state["clock"] >= clock
        versions = {*state["training"]["version"].tolist(), *state["arriving"]["version"].tolist()}
        assert {*state["versions"]} == {str(version) for version in versions}
        clock = state["clock"]
    finished = sum(len(each.ids) for each in done)
    state = done[-1].after
    assert int(state["started"].sum()) == finished + len(state["training"]["due"]) + len(state["arriving"]["due"])


def test_running_statistics_take_the_mean_of_the_arriving_values():
    stale = 0.0
    for done in rounds(FedBuff(system=FAR_APART), same_clients(), 4):
        name = next(name for name in done.ctx.model.buffers if name.endswith("running_var"))
        mean = done.models[name].mean(0)
        torch.testing.assert_close(done.after["params"][name], mean, rtol=0, atol=1e-12)
        stale += float(done.after["staleness"])
    assert stale


def test_a_client_would_use_the_newest_model():
    (*_, done) = rounds(FedBuff(system=FAR_APART), same_clients(), 3)
    for model in personal_models(done.algorithm, done.after, torch.tensor([5, 0]), same_clients()):
        assert all(torch.equal(leaf, done.after["params"][name]) for name, leaf in model.items())


@pytest.mark.parametrize("compression", [FedBuff().compression, Qsgd(), TopK(share=0.1, error_feedback=False)])
def test_bytes_are_a_model_down_and_an_update_up_for_each_arrival(compression):
    """Of 196 trained entries and 8 statistics, which cross as they are."""
    algorithm, ctx = FedBuff(system=FAR_APART, compression=compression), same_clients()
    state = start(algorithm, ctx)
    weights = {name: leaf for name, leaf in ctx.model.params().items() if name in ctx.weights}
    payload, _ = compression.encode(weights, {}, torch.tensor(0))
    for done in rounds(algorithm, ctx, 3, state):
        up = tree.size_in_bytes(payload) + 8 * 8
        assert (done.bytes_down, done.bytes_up) == (3 * 204 * 8, 3 * up)
        assert state["bytes"] == {"down": 204 * 8, "up": up}


def test_durations_are_the_devices():
    """Whoever comes first has taken the time of its bytes and examples."""
    algorithm = FedBuff(system=replace(EQUAL, bandwidth=1000.0))
    size, examples = 204 * 8, LOCAL.examples(20)
    (done,) = rounds(algorithm, same_clients(), 1)
    assert done.after["clock"] == pytest.approx(size / 1000 + examples * 0.005 + size / 250)


@pytest.mark.parametrize(
    "algorithm",
    [FedBuff(system=FAR_APART), FedBuff(concurrency=2, system=FAR_APART, compression=Qsgd())],
    ids=["all at once", "two at once, compressed"],
)
def test_mechanisms_agree_and_it_resumes(algorithm):
    assert_mechanisms_agree(algorithm, "norm", count=5)
    assert gap(*(play(algorithm, "norm", workers=count) for count in (1, 2))) < 1e-12
    assert_resumes(algorithm, "norm")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"concurrency": 7}, r"algorithm\.concurrency=7: must be at most clients=6"),
        ({"selection": CluSamp()}, "selection=CluSamp: draws among all clients"),
        ({"selection": Full()}, "selection=Full: draws among all clients.*use selection=uniform"),
        ({"system": Ideal()}, "system=Ideal: has no simulated clock"),
        ({"system": Devices(dropout=0.1)}, "system=Devices: FedBuff needs an answer from every client"),
        ({"compression": TopK()}, "compression=TopK: remembers an error"),
    ],
)
def test_what_it_refuses(settings, said):
    with pytest.raises(ConfigError, match=said):
        FedBuff(**settings).check(make_context(make_model("linear", make_world()), make_world([5] * 6), LOCAL))


def test_it_tells_staleness_and_who_started():
    algorithm = FedBuff(concurrency=4, system=FAR_APART)
    (*_, done) = rounds(algorithm, same_clients(), 4)
    found = algorithm.metrics(done.after, done.ctx)["staleness"]
    assert found == float((3 - done.before["arriving"]["version"]).double().mean()) > 0
    table = algorithm.artifacts(done.after, done.ctx)["participations"]
    assert table["started"].sum() == 4 + 5 * 3 - 1  # all places at first, and all who arrive but the last one again


def test_it_learns_despite_staleness():
    """Six clients with quadratic losses around 2, four training at once."""

    class Own(FedBuff, Quadratic):
        """FedBuff over quadratics."""

    centers = (0.0, 4.0, 1.0, 3.0, 2.0, 2.0)
    ctx = replace(pair((1,) * 6, centers=centers), cohort=2)
    *_, done = rounds(Own(concurrency=4, system=EQUAL), ctx, 60)
    assert weight(done.after["params"]) == pytest.approx(2, abs=0.5)
