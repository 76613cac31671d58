"""Devices: times by hand, who fails and who is late, FedProx's stragglers, bytes, the clock, what refuses them."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from program import metrics, only_folder, result, run
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
from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedbuff import FedBuff
from fedexp.algorithms.fedcat import FedCat
from fedexp.algorithms.feddyn import FedDyn
from fedexp.algorithms.fednova import FedNova
from fedexp.algorithms.label_clusters import LabelClusters
from fedexp.algorithms.scaffold import Scaffold
from fedexp.compression.qsgd import Qsgd
from fedexp.compression.top_k import TopK
from fedexp.engine import Local, client_rows
from fedexp.errors import ConfigError
from fedexp.selection.full import Full
from fedexp.selection.poisson import Poisson
from fedexp.server_optimizer.momentum import Momentum
from fedexp.system.devices import Device, Devices

EQUAL = {"speed_spread": 0.0, "bandwidth_spread": 0.0}


def context(kind="cnn", cohort=6, local=LOCAL, **settings):
    world = make_world()
    return make_context(make_model(kind, world), world, local, cohort, **settings)


def test_seconds_by_hand():
    """A model of 248,024 bytes: .248024 + 100 * .005 + .992096, and .031003 + 300 * .02 + .124012."""
    assert Device(0.005, 1e6, 0.25e6).seconds(100, 248_024, 248_024) == pytest.approx(1.74012)
    assert Device(0.02, 8e6, 2e6).seconds(300, 248_024, 248_024) == pytest.approx(6.155015)


def test_devices_are_drawn_once_around_their_medians():
    devices = [Devices().device(client, seed=0) for client in range(2000)]
    speeds = torch.tensor([each.seconds_per_example for each in devices], dtype=torch.float64).log()
    bands = torch.tensor([each.down for each in devices], dtype=torch.float64).log()
    assert float(speeds.mean()) == pytest.approx(math.log(0.005), abs=0.06)
    assert float(speeds.std()) == pytest.approx(0.6, rel=0.06)
    assert float(bands.mean()) == pytest.approx(math.log(1e6), abs=0.1)
    assert float(bands.std()) == pytest.approx(1.0, rel=0.06)
    assert all(each.up == each.down / 4 for each in devices)
    assert abs(float(torch.corrcoef(torch.stack([speeds, bands]))[0, 1])) < 0.1
    assert devices[7] == Devices().device(7, seed=0, number=3) != Devices().device(7, seed=1)
    assert len({Devices(jitter=0.1).device(7, 0, number).seconds_per_example for number in range(5)}) == 5
    assert Devices(**EQUAL).device(3, 0) == Device(0.005, 1e6, 0.25e6)


def test_a_round_lasts_as_long_as_its_slowest_client():
    """Of equal devices the one with the most examples, 2 epochs of 40; its model down and up."""
    algorithm, ctx = FedAvg(selection=Full(), system=Devices(**EQUAL)), context()
    size = sum(leaf.numel() * 8 for leaf in ctx.model.params().values())
    done = rounds(algorithm, ctx, 2)
    slowest = size / 1e6 + 2 * 40 * 0.005 + size / 0.25e6
    assert [each.after["clock"] for each in done] == pytest.approx([slowest, 2 * slowest])


def test_compressed_uploads_take_less_time():
    plain, coarse = (
        rounds(FedAvg(system=Devices(**EQUAL, bandwidth=100.0), compression=compression), context(cohort=3), 1)[0]
        for compression in (FedAvg().compression, Qsgd())
    )
    saved = (plain.bytes_up - coarse.bytes_up) / 3 / 25.0
    assert plain.after["clock"] - coarse.after["clock"] == pytest.approx(saved)


@pytest.mark.parametrize("kind", [FedAvg, Scaffold])
@pytest.mark.parametrize("system", [Devices(), Devices(deadline=1e9, jitter=0.2)], ids=["no deadline", "a long one"])
def test_where_nobody_fails_the_weights_are_those_without(kind, system):
    assert gap(play(kind(system=system), "norm"), play(kind(), "norm")) == 0


def answered(system, ctx, count=60):
    """Which clients answered in each round, all being drawn: [rounds, N]."""
    found = torch.zeros(count, 6)
    for number in range(count):
        work = system.work(torch.arange(6), ctx, number)
        found[number] = (work > 0).float()
    return found


def test_dropouts_are_independent_and_do_not_depend_on_the_cohort():
    system, ctx = Devices(dropout=0.3), context()
    found = answered(system, ctx, 800)
    assert (found.mean(0) - 0.7).abs().max() < 4 * (0.21 / 800) ** 0.5
    assert abs(float(torch.corrcoef(found.T)[~torch.eye(6, dtype=torch.bool)].max())) < 0.2
    alone = [int(system.work(torch.tensor([4, 2]), ctx, number)[0] > 0) for number in range(20)]
    assert alone == found[:20, 4].int().tolist()


def one_after_another(algorithm, ctx, count):
    """(a Round, what all clients remember before it, and after it)."""
    state, everyone = start(algorithm, ctx), torch.arange(6)
    for _ in range(count):
        before = tree.apply(torch.clone, client_rows.take(state["memory"], everyone))
        (done,) = rounds(algorithm, ctx, 1, state)
        state = done.after
        yield done, before, tree.apply(torch.clone, client_rows.take(state["memory"], everyone))


@pytest.mark.parametrize("algorithm", [Scaffold(), FedAvg(compression=TopK(share=0.1))], ids=["scaffold", "top_k"])
def test_those_who_failed_have_downloaded_and_are_otherwise_absent(algorithm):
    """The rest are averaged by n_k; what the clients that failed remember, controls or errors, stays as it was."""
    ctx = context()
    (plain,) = rounds(replace(algorithm, selection=Full()), ctx, 1)
    flaky, seen = replace(algorithm, selection=Full(), system=Devices(dropout=0.4)), set()
    for done, before, after in one_after_another(flaky, ctx, 4):
        there = set(done.ids.tolist())
        assert 0 < len(there) < 6
        assert (done.bytes_down, done.bytes_up) == (plain.bytes_down, plain.bytes_up * len(there) // 6)
        changed = set()
        for (_, first), (_, second) in zip(tree.leaves(before), tree.leaves(after)):
            changed |= {*(first != second).flatten(1).any(1).nonzero().flatten().tolist()}
        assert changed == there
        mean = tree.mean(done.uploads["update"], ctx.sizes[done.ids])
        for name, change in mean.items():
            torch.testing.assert_close(done.after["params"][name] - done.before["params"][name], change)
        seen |= there
    assert len(seen) == 6


@pytest.mark.parametrize("optimizer", [{}, {"server_optimizer": Momentum()}], ids=["sgd", "momentum"])
def test_a_round_in_which_all_fail_leaves_the_model(optimizer):
    algorithm = FedAvg(system=Devices(dropout=1.0, deadline=7.0), **optimizer)
    ctx = context(cohort=2)
    for done in rounds(algorithm, ctx, 2):
        assert all(torch.equal(leaf, done.before["params"][name]) for name, leaf in done.after["params"].items())
        assert (len(done.ids), done.bytes_up, done.examples) == (0, 0, 0)
        assert done.bytes_down == 2 * sum(leaf.numel() * 8 for leaf in ctx.model.params().values())
    assert done.after["clock"] == 14.0


def test_who_misses_the_deadline_is_left_out_and_the_round_lasts_so_long():
    """Equal devices, 5, 40, 17, 30, 8 and 20 examples, two epochs: within .25 s are those with 17 and fewer."""
    system = Devices(**EQUAL, bandwidth=1e9, deadline=0.25)
    done = rounds(FedAvg(selection=Full(), system=system), context(), 2)
    assert [each.ids.tolist() for each in done] == [[0, 2, 4, 5]] * 2
    assert [each.after["clock"] for each in done] == [0.25, 0.5]
    model = sum(leaf.numel() * 8 for leaf in done[0].ctx.model.params().values())
    assert (done[0].bytes_up, done[0].bytes_down) == (4 * model, 6 * model)
    plain = rounds(FedAvg(selection=Full()), context(), 1)[0]
    kept = tree.take(plain.uploads["update"], done[0].ids)
    assert all(torch.equal(done[0].uploads["update"][name], leaf) for name, leaf in kept.items())
    longer = rounds(FedAvg(selection=Full(), system=Devices(**EQUAL, bandwidth=1e9, deadline=9.0)), context(), 1)[0]
    assert longer.after["clock"] == pytest.approx(2 * 40 * 0.005, rel=1e-3)


def test_over_commitment_keeps_the_first_answers_and_ends_the_round_with_the_last_of_them():
    """Equal devices, 5, 40, 17, 30, 8 and 20 examples, two epochs: the four with 20 and fewer are the first."""
    model = sum(leaf.numel() * 8 for leaf in context().model.params().values())
    for deadline in (None, 0.25):  # before which the last of three has arrived, but not of four
        system = Devices(**EQUAL, bandwidth=1e9, wait_for=3, deadline=deadline)
        done = rounds(FedAvg(selection=Full(), system=system), context(), 2)
        assert [each.ids.tolist() for each in done] == [[0, 2, 4]] * 2
        assert [each.after["clock"] for each in done] == pytest.approx([0.17, 0.34], rel=1e-3)
        assert (done[0].bytes_up, done[0].bytes_down) == (3 * model, 6 * model)
        assert done[0].examples == 2 * (5 + 40 + 17 + 30 + 8 + 20), "the others have trained as well"
    late = Devices(**EQUAL, bandwidth=1e9, wait_for=5, deadline=0.25)
    (done,) = rounds(FedAvg(selection=Full(), system=late), context(), 1)
    assert (done.ids.tolist(), done.after["clock"]) == ([0, 2, 4, 5], 0.25)


def test_over_commitment_among_ties_and_failures():
    """The lowest ids of those that arrive at one instant; if too few can answer, the round ends with the slowest."""
    ctx, equal = context(), Devices(**EQUAL, wait_for=2)
    in_time, _ = equal.answers(torch.tensor([4, 3, 1]), [10, 10, 10], 0, 0.0, 0.0, ctx, 0)
    assert in_time.tolist() == [False, True, True]
    in_time, seconds = equal.answers(torch.tensor([4]), [10], 5, 0.0, 0.0, ctx, 0)
    assert (in_time.tolist(), seconds) == ([True], pytest.approx(0.05))
    everybody = Devices(wait_for=6)
    assert gap(play(FedAvg(system=everybody), "norm", cohort=6), play(FedAvg(), "norm", cohort=6)) == 0


def test_a_round_cannot_wait_for_more_than_take_part():
    with pytest.raises(ConfigError, match=r"system\.wait_for=4: must be at most clients_per_round=3"):
        FedAvg(system=Devices(wait_for=4)).check(context(cohort=3))
    with pytest.raises(ConfigError, match=r"system=Devices: FedCat needs an answer from .* or wait_for,"):
        FedCat(system=Devices(wait_for=3)).check(context())


@pytest.mark.parametrize(("share", "less"), [(0.0, 0), (0.5, 3), (0.9, 5), (1.0, 6)])
def test_stragglers_do_from_one_to_all_but_one_of_the_epochs(share, less):
    ctx, seen = context(local=Local(epochs=4, batch_size=8)), set()
    system = Devices(stragglers=share)
    for number in range(30):
        work = system.work(torch.arange(6), ctx, number)
        if share == 0:
            assert work is None
            continue
        assert int((work < 4).sum()) == less and int(work.min()) >= 1 and int(work.max()) <= 4
        seen.update(work.tolist())
        dropped = Devices(stragglers=share, partial_work="drop").work(torch.arange(6), ctx, number)
        assert torch.equal(dropped > 0, work == 4)
    assert share == 0 or seen >= {1, 2, 3}


@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
@pytest.mark.parametrize(
    "local", [Local(epochs=4, batch_size=8), Local(steps=5, batch_size=8)], ids=["epochs", "steps"]
)
def test_a_straggler_s_model_is_that_of_so_many_epochs(mechanism, local):
    """Also the first of a shuffle's steps; and what a client knows of its steps is what it has done."""
    ctx = context(local=local, engine=mechanism)
    algorithm = FedNova(selection=Full(), system=Devices(stragglers=0.5))
    (done,) = rounds(algorithm, ctx, 1)
    work = algorithm.system.work(torch.arange(6), ctx, 0).tolist()
    for client, amount in enumerate(work):
        brief = context(local=local.shortened(amount), engine=mechanism)
        (alone,) = rounds(FedNova(selection=Full()), brief, 1)
        assert int(done.uploads["steps"][client]) == int(alone.uploads["steps"][client])
        for name, update in alone.uploads["update"].items():
            torch.testing.assert_close(done.uploads["update"][name][client], update[client], rtol=0, atol=1e-12)
    assert done.examples == sum(local.shortened(amount).examples(int(size)) for amount, size in zip(work, ctx.sizes))


def test_unequal_work_is_what_fednova_is_for():
    """Equal clients, half of which do less: FedNova's step is no longer FedAvg's."""
    world = make_world([24] * 6)
    ctx = make_context(make_model("cnn", world), world, Local(epochs=4, batch_size=8, lr=0.05), 6)
    for system, equal in ((Devices(), True), (Devices(stragglers=0.5), False)):
        first, second = (rounds(kind(system=system), ctx, 1)[0].after for kind in (FedAvg, FedNova))
        assert (gap(first, second) < 1e-12) == equal


ALL_AT_ONCE = Devices(dropout=0.2, stragglers=0.5, deadline=1.5, wait_for=4, jitter=0.3)


@pytest.mark.parametrize("kind", [FedAvg, Scaffold, FedDyn])
def test_mechanisms_agree_and_it_resumes(kind):
    algorithm = kind(system=ALL_AT_ONCE)
    assert_mechanisms_agree(algorithm, "norm", count=4, cohort=5)
    assert gap(*(play(algorithm, "norm", workers=count, cohort=5) for count in (1, 2))) < 1e-12
    assert_resumes(algorithm, "norm", cohort=5)  # the clock too


@pytest.mark.parametrize("deadline", [None, 7.0])
def test_a_round_for_which_nobody_is_drawn_takes_no_time(deadline):
    nobody = torch.empty(0, dtype=torch.int64)
    in_time, seconds = Devices(deadline=deadline).answers(nobody, [], 0, 0.0, 0.0, context(), 0)
    assert (len(in_time), seconds) == (0, 0.0)


def test_two_cohorts_may_be_of_any_size():
    algorithm = FedAvg(selection=Poisson(), system=replace(ALL_AT_ONCE, wait_for=2))
    assert_mechanisms_agree(algorithm, count=6, cohort=3)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (FedCat(system=Devices(dropout=0.1)), "system=Devices: FedCat needs an answer from every client that is drawn"),
        (FedCat(system=Devices(stragglers=0.5, partial_work="drop")), "FedCat needs an answer from every client"),
        (FedBuff(system=Devices(stragglers=0.5)), "system=Devices: FedBuff needs all of the work of every client"),
        (LabelClusters(labels="bias", clusters=2, system=Devices(stragglers=0.5)), "LabelClusters needs all of the"),
        (LabelClusters(labels="bias", clusters=2, system=Devices(wait_for=2)), "LabelClusters needs an answer from"),
        (Centralized(system=Devices()), "system=Devices: simulates clients' devices, and Centralized has no clients"),
    ],
)  # fmt: skip
def test_who_needs_every_client_refuses_those_that_fail(algorithm, said):
    with pytest.raises(ConfigError, match=said):
        algorithm.check(context())


def test_who_needs_every_client_takes_devices_that_do_not_fail():
    for algorithm in (FedCat(system=Devices()), LabelClusters(labels="counted", clusters=2, system=ALL_AT_ONCE)):
        algorithm.check(context())


def test_a_straggler_takes_fedcat_s_copy_as_far_as_it_works():
    """A visit is as long as the device's work, and the copy goes on from there."""
    algorithm, local = FedCat(system=Devices(stragglers=0.5)), Local(epochs=3, batch_size=8, lr=0.1)
    ctx = context(cohort=2, local=local)
    (done,) = rounds(algorithm, ctx, 1)
    work = algorithm.system.work(done.ids, ctx, 0).tolist()
    assert min(work) < max(work) == 3
    for row in range(2):
        (alone,) = rounds(FedCat(), context(cohort=2, local=local.shortened(work[row])), 1)
        mine, its = ({"params": tree.take(each.after["copies"], row)} for each in (done, alone))
        assert gap(mine, its) < 1e-12
    assert_mechanisms_agree(algorithm, count=4, cohort=3)
    assert_resumes(algorithm, cohort=3)


def test_a_client_that_is_drawn_twice_works_once():
    """CluSamp may draw a client for two clusters: its two models, and what it remembers, are the same."""
    ctx, system = context(local=Local(epochs=9)), Devices(stragglers=0.5, dropout=0.3, **EQUAL)
    works = [system.work(torch.tensor([4, 1, 4, 0, 1, 2]), ctx, number).tolist() for number in range(20)]
    assert all(work[0] == work[2] and work[1] == work[4] for work in works)
    assert {0, 9} < {work[0] for work in works}


def test_one_epoch_has_no_part():
    with pytest.raises(ConfigError, match=r"system\.stragglers=0\.5: do 1 or more, but not all, of local\.epochs=1"):
        FedAvg(system=Devices(stragglers=0.5)).check(context(local=Local(epochs=1)))


def test_a_cohort_of_which_all_work_is_dropped_is_refused():
    """FedProx's 90 % of stragglers, dropped as for FedAvg, leave round(3 * 0.1) = 0 clients of a round."""
    system = Devices(stragglers=0.9, partial_work="drop")
    said = r"system\.stragglers=0\.9: with .*=drop nobody's work is left of clients_per_round=3"
    with pytest.raises(ConfigError, match=said):
        FedAvg(system=system).check(context(cohort=3))
    FedAvg(system=system).check(context(cohort=6))
    FedAvg(system=Devices(stragglers=0.9)).check(context(cohort=3))


def test_where_nobody_ever_answers_the_run_says_so(monkeypatch, tmp_path, capfd):
    """Its accuracy is that of the untrained model."""
    said = "no client's work arrived in any round, so that the global model is as it was at the beginning"
    for name, word in (("none", "system.deadline=1e-3"), ("some", "system.deadline=1e9")):
        assert run(monkeypatch, tmp_path / name, "system=devices", word, "rounds=2") == 0
        assert (said in "".join(capfd.readouterr())) == (name == "none")


@pytest.mark.parametrize("key", ["bandwidth", "upload_ratio"])
def test_a_network_in_which_nothing_moves_is_refused(key):
    with pytest.raises(ConfigError, match=rf"system\.{key}=1e-300: must be at least 1e-06"):
        Devices(**{key: 1e-300})


@pytest.mark.parametrize("key", ["jitter", "speed_spread", "bandwidth_spread"])
def test_a_spread_beyond_all_numbers_is_refused(monkeypatch, tmp_path, capfd, key):
    assert run(monkeypatch, tmp_path, "system=devices", f"system.{key}=1e9") == 2
    assert f"system.{key}=1000000000.0: must be from 0 to 10" in capfd.readouterr().err


def test_a_run_tells_simulated_time_and_goes_on_with_it(monkeypatch, tmp_path):
    words = ["system=devices", "system.dropout=0.5", "system.deadline=2", "clients_per_round=2", "targets=[0.05,0.99]"]
    assert run(monkeypatch, tmp_path / "whole", *words) == 0
    assert run(monkeypatch, tmp_path / "parts", *words, "rounds=3") == 0
    assert run(monkeypatch, tmp_path / "parts", *words, "rounds=6") == 0
    first, second = (
        pd.read_csv(only_folder(tmp_path / name) / "metrics.csv")[["simulated_seconds", "answered"]]
        for name in ("whole", "parts")
    )
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    assert (first["simulated_seconds"].diff().dropna() >= 0).all() and first["simulated_seconds"].iloc[-1] > 0
    assert set(first["answered"]) <= {0, 1, 2} and 0 in set(first["answered"])
    assert metrics(tmp_path / "whole").shape[0] == 6
    found = result(tmp_path / "whole")
    assert found["simulated_seconds"] == first["simulated_seconds"].iloc[-1]
    assert found["simulated_seconds_to"]["0.05"] in first["simulated_seconds"].tolist()
    assert found["simulated_seconds_to"]["0.99"] is None
