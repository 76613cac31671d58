"""FedCat: the chain by hand, dispatch, counts, groups, cycles, and that its ablations reduce to FedAvg."""

import multiprocessing
from dataclasses import dataclass

import pytest
import torch
from worlds import (
    assert_mechanisms_agree,
    assert_resumes,
    by_hand,
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
from fedexp.algorithms.fedcat import FedCat
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.privacy.none import NoPrivacy
from fedexp.randomness import generator
from fedexp.round import first_models, one_round, personal_models
from fedexp.selection.full import Full
from fedexp.selection.uniform import Uniform
from fedexp.server_optimizer.momentum import Momentum
from fedexp.system.devices import Devices

LOCAL = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0)


def context(sizes, cohort, **settings):
    world = make_world(sizes)
    return make_context(make_model("linear", world), world, LOCAL, cohort, **settings)


def groups(algorithm, ctx, number):
    """Those of a round, asked for as the round itself does."""
    return algorithm.groups(number, ctx, generator(ctx.seed, "round", number))


def merged_by_hand(ctx):
    """Two copies, two devices: each copy visits both, in either order; then the plain mean."""
    ends = []
    for path in ((0, 1), (1, 0)):
        params = ctx.model.params()
        for client in path:
            params = by_hand(ctx.model, params, ctx.world, client, 0.5)
        ends.append(params)
    return {name: (ends[0][name] + ends[1][name]) / 2 for name in ends[0]}


def test_a_cycle_by_hand():
    """Devices of 3 and 9 examples."""
    ctx = context([3, 9], 2)
    first, second = rounds(FedCat(), ctx, 2)
    assert gap(first.after, {"params": ctx.model.params()}) == 0  # not merged yet: the last merged model is evaluated
    assert sorted(first.after["examples"].tolist()) == [3, 9]
    assert second.after["examples"].tolist() == [12, 12]
    for name, expected in merged_by_hand(ctx).items():
        torch.testing.assert_close(second.after["params"][name], expected, rtol=0, atol=1e-12)


def test_the_server_optimizer_steps_once_a_cycle_along_the_merged_change():
    """Momentum 0.5: w1 = w0 + D1, w2 = w1 + D2 + D1 / 2, where D is what a cycle changes by without it."""
    ctx = context([3, 9], 2)
    algorithm = FedCat(server_optimizer=Momentum(beta=0.5))
    w = [done.after["params"] for done in rounds(algorithm, ctx, 4)]
    halfway = rounds(FedCat(), ctx, 4)[1].after
    again = {**start(FedCat(), ctx), "params": halfway["params"], "round": 2, "counts": halfway["counts"]}
    plain = rounds(FedCat(), ctx, 2, again)[-1].after["params"]
    for name, before in ctx.model.params().items():
        torch.testing.assert_close(w[1][name], merged_by_hand(ctx)[name], rtol=0, atol=1e-12)
        assert torch.equal(w[2][name], w[1][name])
        torch.testing.assert_close(w[3][name], plain[name] + (w[1][name] - before) / 2, rtol=0, atol=1e-12)


def test_copies_weigh_by_the_examples_that_they_saw():
    """With lambda large and one greedy choice a group, d_i = sum of the sizes on copy i's path."""
    ctx = context([2, 4, 8, 16], 2, seed=5)
    done = rounds(FedCat(), ctx, 2)
    paths = torch.stack([each.ids for each in done])
    expected = ctx.sizes[paths].sum(0)
    state = done[-1].after
    assert state["examples"].tolist() == expected.tolist()
    weight = expected.double()
    for name, value in state["params"].items():
        torch.testing.assert_close(value, torch.tensordot(weight / weight.sum(), state["copies"][name], 1))


def test_a_cycle_begins_at_the_merged_model_and_goes_on_from_the_copies():
    ctx = context([2, 4, 8, 16], 2)
    done = rounds(FedCat(), ctx, 4)
    for number, each in enumerate(done):
        received = FedCat().download(each.before, each.ids, ctx)["model"]["head.weight"]
        assert torch.equal(received[0], received[1]) == (number % 2 == 0)
        assert torch.equal(received, done[number - 1].models["head.weight"]) == (number % 2 == 1)
    assert done[2].after["examples"].tolist() == ctx.sizes[done[2].ids].tolist()  # counted anew


def test_dispatch_counts_and_groups():
    """Copy i goes to group (offset + i) mod K, so it meets each group once a cycle; counts are by offset."""
    ctx, algorithm = context([4] * 10, 3), FedCat()
    done = rounds(algorithm, ctx, 12)
    for cycle in range(4):
        numbers = range(cycle * 3, cycle * 3 + 3)
        of = [groups(algorithm, ctx, number) for number in numbers]
        visited = [group[done[number].ids].tolist() for group, number in zip(of, numbers)]
        assert visited == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
        assert all(sorted(torch.bincount(group).tolist()) == [3, 3, 4] for group in of)
    counts = done[-1].after["counts"]
    assert counts.sum(0).tolist() == [12, 12, 12]  # K devices at each of 4 rounds with this offset
    assert counts.shape == (10, 3)


def test_a_device_that_was_drawn_but_failed_is_counted():
    """Otherwise those that never answer would be drawn more and more."""
    ctx = context([4] * 6, 3)
    done = rounds(FedCat(concatenation=False, epsilon=1.0, system=Devices(dropout=0.25)), ctx, 6)
    assert all(len(each.ids) for each in done) and sum(len(each.ids) for each in done) < 18
    assert done[-1].after["counts"].sum(0).tolist() == [6, 6, 6]


def test_greedy_selection_takes_part_evenly():
    """epsilon = 1 and one group of 6 for ever: every device has had its turn before any has two."""
    done = rounds(FedCat(epsilon=1.0), context([4] * 6, 1), 12)
    for each in done:
        assert each.after["counts"].max() - each.after["counts"].min() <= 1
    assert done[-1].after["counts"].flatten().tolist() == [2] * 6


def test_sampling_weight_is_one_over_the_root_of_count_plus_one():
    """epsilon = 0, counts 0 and 8: probabilities 1 : 1/3."""
    ctx = context([4, 4], 1)
    state = {"counts": torch.tensor([[0], [8]]), "round": 0}
    draws = [int(FedCat(epsilon=0.0).select(state, ctx, generator(0, "t", i))) for i in range(4000)]
    assert abs(sum(draws) / 4000 - 0.25) < 0.03


def test_regrouping_waits_lambda_cycles():
    ctx, algorithm = context([4] * 8, 2), FedCat(cycles_per_grouping=2)
    of = [groups(algorithm, ctx, number).tolist() for number in range(8)]
    assert of[0] == of[1] == of[2] == of[3]
    assert of[3] != of[4] == of[5] == of[6] == of[7]


def test_grouping_comes_before_selection_in_a_rounds_draws():
    """The permutation of a grouping is the first draw of the round that begins it."""
    ctx, algorithm = context([4] * 8, 2), FedCat(cycles_per_grouping=2)
    gen = generator(ctx.seed, "round", 4)
    expected = (torch.arange(8) % 2)[torch.randperm(8, generator=gen)]
    assert groups(algorithm, ctx, 6).tolist() == expected.tolist()
    drawn = [float(torch.rand((), generator=gen))]  # of the first group: greedy or by weight
    gen = generator(ctx.seed, "round", 4)
    algorithm.groups(4, ctx, gen)
    assert drawn == [float(torch.rand((), generator=gen))]


def test_without_grouping_and_concatenation_it_is_fedavg():
    cat = play(FedCat(grouping=False, concatenation=False), "norm", count=4)
    avg = play(FedAvg(), "norm", count=4)
    assert gap(cat, avg) == 0
    assert cat.keys() == avg.keys()


def test_without_grouping_a_copy_visits_other_devices_whatever_the_selection():
    """Full gives the devices in one order: each copy would train on one device alone, and none be passed on."""
    ctx = context([3, 4, 5, 6], 4)
    for selection in (Uniform(), Full()):
        done = rounds(FedCat(grouping=False, selection=selection), ctx, 8)
        assert all(sorted(each.ids.tolist()) == [0, 1, 2, 3] for each in done)
        assert min(len({int(each.ids[copy]) for each in done}) for copy in range(4)) > 1
    merged = rounds(FedCat(grouping=False, concatenation=False, selection=Full()), ctx, 2)
    assert [each.ids.tolist() for each in merged] == [[0, 1, 2, 3]] * 2


def test_gc_merges_every_round_and_dc_does_not():
    w0 = {"params": make_model("cnn", make_world(shape=(3, 8, 8))).params()}
    assert gap(play(FedCat(concatenation=False), count=1), w0) > 1e-4
    assert gap(play(FedCat(grouping=False), count=2), w0) == 0
    assert gap(play(FedCat(grouping=False), count=3), w0) > 1e-4


def test_bytes_are_fedavgs():
    world = make_world()
    ctx = make_context(make_model("cnn", world), world, Local(epochs=1, batch_size=8))
    size = (4 * 9 + 4 + 36 * 4 + 4) * 8
    for done in rounds(FedCat(), ctx, 4):
        assert (done.bytes_up, done.bytes_down) == (3 * size, 3 * size)


def test_any_client_uses_the_last_merged_model_and_a_device_receives_its_copy():
    """Between merges; all ten clients are asked, not the three of a round."""
    ctx = context([4] * 10, 3)
    done = rounds(FedCat(), ctx, 5)
    now, clients = done[-1], torch.arange(10)
    assert gap({"params": now.after["params"]}, {"params": done[2].after["params"]}) == 0
    for params in personal_models(FedCat(), now.after, clients, ctx):
        assert gap({"params": params}, {"params": done[2].after["params"]}) == 0
    copies = first_models(now)
    for row, params in enumerate(copies):
        assert gap({"params": params}, {"params": tree.take(done[3].models, row)}) == 0


@pytest.mark.parametrize(
    "algorithm", [FedCat(), FedCat(concatenation=False), FedCat(grouping=False)], ids=["fedcat", "gc", "dc"]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_mechanisms_agree(algorithm, workers):
    assert_mechanisms_agree(algorithm, "norm", count=4, workers=workers)


def test_workers_stay_for_a_whole_cycle_and_the_next():
    """A cycle's first round sends the same model to all, its others different ones; workers serve both."""
    ctx, algorithm = context([4] * 6, 3, workers=2), FedCat()
    before, state, served = set(multiprocessing.active_children()), start(algorithm, ctx), []
    for _ in range(5):
        state = one_round(algorithm, state, ctx).after
        served.append({child.pid for child in set(multiprocessing.active_children()) - before})
    ctx.engine.close()
    assert len(served[0]) == 2 and all(pids == served[0] for pids in served)


@pytest.mark.parametrize("settings", [{}, {"cycles_per_grouping": 2}, {"grouping": False}, {"concatenation": False}])
def test_resumes(settings):
    """Within a cycle, and within a grouping that began three rounds before."""
    assert_resumes(FedCat(**settings), "norm", count=5)


def test_groups_allow_a_plain_mean():
    """selection.merge says how updates are weighted, not who is drawn: here clients of 4 and 12 examples, one a group.
    In a whole cycle each copy visits both, so that the weights are equal in any case."""
    ctx, equal = context([4, 12], 2), Uniform(merge="equal")
    FedCat(selection=equal).check(ctx)
    assert gap(rounds(FedCat(selection=equal), ctx, 2)[-1].after, {"params": merged_by_hand(ctx)}) < 1e-12
    merged = FedCat(selection=equal, concatenation=False)
    merged.check(ctx)
    (done,) = rounds(merged, ctx, 1)
    assert gap({"params": tree.mean(done.models, torch.ones(2))}, done.after) < 1e-12
    assert gap(rounds(FedCat(concatenation=False), ctx, 1)[0].after, done.after) > 1e-6  # weighted by examples


def test_what_would_break_its_groups_or_its_copies_is_refused():
    @dataclass(frozen=True)
    class Noise(NoPrivacy):
        scale: float = 1.0

    ctx = context([4] * 3, 3)
    FedCat(selection=Full(), grouping=False).check(ctx)
    with pytest.raises(ConfigError, match=r"^selection=Full: .*grouping=false"):
        FedCat(selection=Full()).check(ctx)
    for switch in ("grouping", "concatenation"):
        with pytest.raises(ConfigError, match=r"^privacy=.*privacy=none"):
            FedCat(privacy=Noise(), **{switch: False}).check(ctx)


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"algorithm\.epsilon=1.5"):
        FedCat(epsilon=1.5)
    with pytest.raises(ConfigError, match=r"algorithm\.cycles_per_grouping=0"):
        FedCat(cycles_per_grouping=0)
