"""FedCat: the chain by hand, dispatch, counts, groups, cycles, and that its ablations reduce to FedAvg."""

import torch
from worlds import by_hand, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedcat import FedCat
from fedexp.engine import Local
from fedexp.measure.communication import traffic
from fedexp.randomness import generator

LOCAL = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0)


def test_a_cycle_by_hand():
    """Two copies, two devices of 3 and 9 examples: each copy visits both, in either order; then the plain mean."""
    world = make_world([3, 9])
    model = make_model("linear", world)
    start = model.params()
    algorithm, engine = FedCat(2, LOCAL), make_engine(model, world, LOCAL)
    state = algorithm.init(world, model, start)
    state = algorithm.round(state, world, engine, generator(0, "round", 0))
    assert gap(state, {"params": start}) == 0  # not merged yet: the last merged model is evaluated
    assert sorted(state["examples"].tolist()) == [3, 9]
    state = algorithm.round(state, world, engine, generator(0, "round", 1))
    ends = []
    for path in ((0, 1), (1, 0)):
        params = start
        for client in path:
            params = by_hand(model, params, world, client, 0.5)
        ends.append(params)
    assert state["examples"].tolist() == [12, 12]
    for name in start:
        torch.testing.assert_close(state["params"][name], (ends[0][name] + ends[1][name]) / 2, rtol=0, atol=1e-12)


def test_copies_weigh_by_the_examples_that_they_saw():
    """With lambda large and one greedy choice a group, d_i = sum of the sizes on copy i's path."""
    world = make_world([2, 4, 8, 16])
    model = make_model("linear", world)
    algorithm, engine = FedCat(2, LOCAL), make_engine(model, world, LOCAL)
    state = algorithm.init(world, model, model.params())
    seen = [[], []]
    for round in range(2):
        state = algorithm.round(state, world, engine, generator(5, "round", round))
        for copy, client in enumerate(engine.drain()[0].ids.tolist()):
            seen[copy].append(client)
    expected = [sum(int(world.sizes[client]) for client in path) for path in seen]
    assert state["examples"].tolist() == expected
    copies, weight = state["copies"], torch.tensor(expected, dtype=torch.float64)
    for name, value in state["params"].items():
        torch.testing.assert_close(value, torch.tensordot(weight / weight.sum(), copies[name], 1))


def test_dispatch_counts_and_groups():
    """Copy i goes to group (offset + i) mod K, so it meets each group once a cycle; counts are by offset."""
    world = make_world([4] * 10)
    model = make_model("linear", world)
    algorithm, engine = FedCat(3, LOCAL), make_engine(model, world, LOCAL)
    state = algorithm.init(world, model, model.params())
    for cycle in range(4):
        visited = []
        for offset in range(3):
            state = algorithm.round(state, world, engine, generator(0, "round", cycle * 3 + offset))
            ids = engine.drain()[0].ids
            visited.append(state["groups"][ids].tolist())
        assert visited == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
        assert sorted(torch.bincount(state["groups"]).tolist()) == [3, 3, 4]
    assert state["counts"].sum(0).tolist() == [12, 12, 12]  # K devices at each of 4 rounds with this offset
    assert state["counts"].shape == (10, 3)


def test_greedy_selection_takes_part_evenly():
    """epsilon = 1 and one group of 6 for ever: every device has had its turn before any has two."""
    world = make_world([4] * 6)
    algorithm = FedCat(1, LOCAL, epsilon=1.0)
    model = make_model("linear", world)
    engine, state = make_engine(model, world, LOCAL), algorithm.init(world, model, model.params())
    for round in range(12):
        state = algorithm.round(state, world, engine, generator(0, "round", round))
        assert state["counts"].max() - state["counts"].min() <= 1
    assert state["counts"].flatten().tolist() == [2] * 6


def test_sampling_weight_is_one_over_the_root_of_count_plus_one():
    """epsilon = 0, counts 0 and 8: probabilities 1 : 1/3."""
    algorithm = FedCat(1, LOCAL, epsilon=0.0)
    state = {"groups": torch.zeros(2, dtype=torch.int64), "counts": torch.tensor([[0], [8]]), "round": 0}
    draws = [int(algorithm._from_group(state, 0, 0, generator(0, "t", i))) for i in range(4000)]
    assert abs(sum(draws) / 4000 - 0.25) < 0.03


def test_regrouping_waits_lambda_cycles():
    world = make_world([4] * 8)
    model = make_model("linear", world)
    algorithm, engine = FedCat(2, LOCAL, cycles_per_grouping=2), make_engine(model, world, LOCAL)
    state, groups = algorithm.init(world, model, model.params()), []
    for round in range(8):
        state = algorithm.round(state, world, engine, generator(0, "round", round))
        groups.append(state["groups"].tolist())
    assert groups[0] == groups[3]
    assert groups[3] != groups[4] == groups[7]


def test_without_grouping_and_concatenation_it_is_fedavg():
    cat = play(lambda k, local: FedCat(k, local, grouping=False, concatenation=False), "norm", count=4)
    avg = play(lambda k, local: FedAvg(k, local), "norm", count=4)
    assert gap(cat, avg) == 0


def test_gc_merges_every_round_and_dc_does_not():
    start = play(lambda k, local: FedAvg(k, local), count=0)
    gc = play(lambda k, local: FedCat(k, local, concatenation=False), count=1)
    dc = play(lambda k, local: FedCat(k, local, grouping=False), count=2)
    assert gap(gc, start) > 1e-4
    assert gap(dc, start) == 0
    assert gap(play(lambda k, local: FedCat(k, local, grouping=False), count=3), start) > 1e-4


def test_bytes_are_fedavgs():
    world = make_world()
    model = make_model("cnn", world)
    local = Local(epochs=1, batch_size=8)
    engine, algorithm = make_engine(model, world, local), FedCat(3, local)
    algorithm.round(algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0))
    size = (4 * 9 + 4 + 36 * 4 + 4) * 8
    assert traffic(engine.drain()) == (3 * size, 3 * size)
