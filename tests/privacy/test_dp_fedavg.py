"""DP-FedAvg: clipping and noise by hand, epsilon's reference values, what it refuses, neutral and empty cohorts."""

import math
from dataclasses import replace

import pytest
import torch
from program import FEW, metrics, result, run
from torch import nn
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
)

from fedexp import tree
from fedexp.algorithms.cadis import Cadis
from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedavg_pretrained import FedAvgPretrained
from fedexp.algorithms.fedbn import FedBN
from fedexp.algorithms.fedcat import FedCat
from fedexp.algorithms.fedconcat import FedConcat
from fedexp.algorithms.fedfa import FedFA
from fedexp.algorithms.fednova import FedNova
from fedexp.algorithms.fedper import FedPer
from fedexp.algorithms.fedprox import FedProx
from fedexp.algorithms.ifca import Ifca
from fedexp.algorithms.scaffold import Scaffold
from fedexp.compression.majority_vote import MajorityVote
from fedexp.compression.none import NoCompression
from fedexp.compression.qsgd import Qsgd
from fedexp.compression.random_k import RandomK
from fedexp.compression.top_k import TopK
from fedexp.errors import ConfigError
from fedexp.models import Classifier, Model
from fedexp.models.layers import keep
from fedexp.privacy.dp_fedavg import DpFedAvg, epsilon
from fedexp.selection.clusamp import CluSamp
from fedexp.selection.full import Full
from fedexp.selection.poisson import Poisson
from fedexp.server_optimizer.momentum import Momentum
from fedexp.system.devices import Devices

pytest.importorskip("dp_accounting", reason="epsilon needs the extra [privacy]")

QUIET = DpFedAvg(noise_multiplier=0.0, clip_norm=None)


def context(sizes=(20,) * 6, kind="cnn", **settings):
    world = make_world(list(sizes))
    return make_context(make_model(kind, world), world, LOCAL, **settings)


def test_updates_are_clipped_by_hand():
    """(3, 4) and (.3, .4), over two tensors, with C = 1: (.6, .8), (.3, .4); their mean is (.45, .6)."""
    privacy, read = DpFedAvg(noise_multiplier=0.0), []
    for update in ({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])},
                   {"a": torch.tensor([0.3]), "b": torch.tensor([[0.4]])}):  # fmt: skip
        bounded, told = privacy.clip(update, {})
        assert told == {}
        read.append(bounded)
    assert [float(leaf) for each in read for leaf in each.values()] == pytest.approx([0.6, 0.8, 0.3, 0.4])
    mean = tree.mean(tree.stack(read), privacy.weights(torch.tensor([5, 80])))
    moved = privacy.perturb(mean, 2, {}, context(cohort=2), 0)
    assert [float(leaf) for leaf in moved.values()] == pytest.approx([0.45, 0.6])


def test_noise_is_z_times_c_on_the_sum_and_its_own_in_each_round():
    privacy, zero = DpFedAvg(noise_multiplier=2.0, clip_norm=0.5), {"a": torch.zeros(200, 100)}
    noise = [privacy.perturb(zero, 4, {}, context(cohort=4), number)["a"] for number in (0, 1)]
    for each in noise:
        assert float(each.std()) == pytest.approx(2.0 * 0.5 / 4, rel=0.02)
        assert abs(float(each.mean())) < 4 * 0.25 / math.sqrt(each.numel())
    assert abs(float((noise[0] * noise[1]).mean())) < 4 * 0.25**2 / math.sqrt(noise[0].numel())
    assert torch.equal(noise[0], privacy.perturb(zero, 4, {}, context(cohort=4), 0)["a"])


def test_noise_is_the_same_in_every_precision():
    privacy, zero = DpFedAvg(noise_multiplier=2.0), torch.zeros(50)
    noise = [
        privacy.perturb({"a": zero.to(kind)}, 4, {}, context(cohort=4), 0)["a"]
        for kind in (torch.float32, torch.float64)
    ]
    assert noise[1].dtype == torch.float64
    torch.testing.assert_close(noise[0].double(), noise[1], rtol=1e-6, atol=0)


def test_the_denominator_is_the_expected_cohort():
    moved = DpFedAvg(noise_multiplier=0.0).perturb({"a": torch.tensor([0.8])}, 1, {}, context(cohort=4), 0)
    assert moved["a"].tolist() == pytest.approx([0.2])


@pytest.mark.parametrize("selection", [{}, {"selection": Full()}], ids=["uniform", "full"])
def test_neither_clipped_nor_noisy_is_fedavg_where_clients_are_equal(selection):
    cohort = 6 if selection else 3
    states = [rounds(FedAvg(privacy=privacy, **selection), context(cohort=cohort), 3)[-1].after
              for privacy in (QUIET, FedAvg().privacy)]  # fmt: skip
    assert gap(*states) == 0


def test_what_is_added_are_clipped_updates_counted_alike():
    ctx = context(sizes=(5, 40, 17, 30, 8, 20))
    privacy = DpFedAvg(noise_multiplier=0.0, clip_norm=0.1)
    (done,), (plain,) = (rounds(FedAvg(privacy=each), ctx, 1) for each in (privacy, FedAvg().privacy))
    norms = torch.cat([leaf.flatten(1) for leaf in plain.uploads["update"].values()], 1).norm(dim=1)
    assert (norms > 0.1).any() and (norms < 0.1).any()
    assert (done.bytes_up, done.bytes_down) == (plain.bytes_up, plain.bytes_down)
    for name, update in plain.uploads["update"].items():
        factor = (0.1 / norms).clamp_max(1).view(-1, *[1] * (update.dim() - 1))
        moved = done.after["params"][name] - done.before["params"][name]
        torch.testing.assert_close(moved, (update * factor).mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("compression", [Qsgd(levels=1), RandomK(share=0.2, error_feedback=False)], ids=str)
def test_the_server_bounds_what_compression_made_longer(compression):
    """A coarse quantization, or entries times d / k, may exceed C; what is added does not."""
    ctx, longer = context(), 0.0
    algorithm = FedAvg(privacy=DpFedAvg(noise_multiplier=0.0, clip_norm=0.1), compression=compression)
    for done in rounds(algorithm, ctx, 4):
        read = torch.cat([leaf.flatten(1) for leaf in done.uploads["update"].values()], 1).norm(dim=1)
        assert (read <= 0.1 + 1e-9).all()
        longer += float((read > 0.1 - 1e-9).sum())
    assert longer > 3


# z, N, K, T, delta, how clients are drawn, accountant, epsilon.
REFERENCE = [
    (1.0, 100, 1, 1000, 1e-5, "poisson", "rdp", 2.101367), (1.0, 100, 1, 1000, 1e-5, "poisson", "pld", 1.828244),
    (1.0, 100, 1, 1, 1e-5, "poisson", "rdp", 0.9555), (1.0, 100, 1, 1, 1e-5, "poisson", "pld", 0.1995),
    (1.0, 100, 1, 100, 1e-5, "poisson", "rdp", 1.2141), (1.0, 100, 10, 100, 1e-5, "poisson", "pld", 7.0466),
    (1.0, 1, 1, 1, 1e-5, "poisson", "rdp", 4.7285), (1.0, 1, 1, 1, 1e-5, "poisson", "pld", 4.3772),
    (1.0, 100_000, 1000, 1000, 1e-5, "fixed", "rdp", 20.9871), (2.0, 100_000, 1000, 1000, 1e-5, "fixed", "rdp", 3.5761),
    (0.7, 100, 10, 100, 1e-3, "poisson", "rdp", 12.00), (2.0, 100, 10, 1000, 1e-3, "poisson", "rdp", 6.87),
]  # fmt: skip


@pytest.mark.parametrize(("z", "clients", "cohort", "count", "delta", "sampling", "accountant", "expected"), REFERENCE)
def test_epsilon_s_reference_values(z, clients, cohort, count, delta, sampling, accountant, expected):
    digits = len(str(expected).partition(".")[2])
    found = epsilon(z, clients, cohort, count, delta, sampling, accountant)
    assert found == pytest.approx(expected, abs=0.6 / 10**digits)


def test_where_all_take_part_it_is_a_gaussian_mechanism_of_half_the_multiplier():
    assert epsilon(0.5, 10, 10, 3, 1e-3, "fixed") == pytest.approx(epsilon(0.25, 1, 1, 3, 1e-3, "poisson"))


@pytest.mark.parametrize(("z", "cohort", "count"), [(4.0, 90, 100), (1.0, 50, 100), (0.5, 10, 100)])
def test_a_fixed_cohort_costs_at_most_what_all_clients_do(z, cohort, count):
    """The accountant's bound for cohorts of fixed size alone is up to 2.4 times as large."""
    everybody = epsilon(z / 2, 1, 1, count, 1e-3, "poisson")
    assert epsilon(z, 100, cohort, count, 1e-3, "fixed") == pytest.approx(everybody)
    assert epsilon(1.0, 100, 10, count, 1e-3, "fixed") < epsilon(0.5, 1, 1, count, 1e-3, "poisson")


def test_both_formulas_are_told_for_a_fixed_cohort_and_one_for_poisson():
    ctx, privacy = context(cohort=3), DpFedAvg(noise_multiplier=2.0)
    fixed, poisson = (privacy.metrics({}, 5, ctx, how) for how in ("fixed", "poisson"))
    assert set(fixed) == {"epsilon", "epsilon_if_poisson"} and set(poisson) == {"epsilon"}
    assert fixed["epsilon_if_poisson"] == poisson["epsilon"] < fixed["epsilon"]
    assert privacy.metrics({}, 6, ctx, "poisson")["epsilon"] > poisson["epsilon"]
    assert DpFedAvg(noise_multiplier=0.0).metrics({}, 1, ctx, "poisson")["epsilon"] == math.inf


@pytest.mark.parametrize(
    "kind",
    [Scaffold, FedNova, FedFA, Cadis, Ifca, FedCat, FedAvgPretrained, Centralized,
     lambda **parts: FedConcat(encoder_rounds=1, **parts)],
)  # fmt: skip
def test_algorithms_that_tell_the_server_more_are_refused(kind):
    with pytest.raises(ConfigError, match=r"^privacy=DpFedAvg: covers the mean of bounded updates alone, .* has hooks"):
        kind(privacy=DpFedAvg()).check(context())


@pytest.mark.parametrize(
    ("algorithm", "kind", "said"),
    [
        (FedAvg(privacy=DpFedAvg()), "norm", r"privacy=DpFedAvg: does not cover running statistics.*running_mean"),
        (FedAvg(privacy=DpFedAvg(), selection=CluSamp()), "cnn", r"privacy=DpFedAvg: needs clients that are drawn by"),
        (FedAvg(privacy=DpFedAvg(delta=0.3)), "cnn", r"privacy\.delta=0\.3: must be below 1 / clients = 0\.1666"),
        (FedAvg(privacy=DpFedAvg(accountant="pld")), "cnn", r"privacy\.accountant=pld: is for selection=poisson"),
        (FedAvg(privacy=DpFedAvg(), compression=MajorityVote()), "cnn",
         r"compression=MajorityVote: does not take the mean of updates, which privacy's noise is for"),
        (FedAvg(privacy=DpFedAvg(), compression=TopK()), "cnn",
         r"compression=TopK: adds what was not sent .* use compression\.error_feedback=false"),
        (FedAvg(privacy=DpFedAvg(accountant="pld", noise_multiplier=0.1), selection=Poisson()), "cnn",
         r"privacy\.accountant=pld: takes very long, and much memory, below privacy\.noise_multiplier=0\.3; use rdp"),
    ],
)  # fmt: skip
def test_what_would_break_the_guarantee_is_refused(algorithm, kind, said):
    with pytest.raises(ConfigError, match=said):
        algorithm.check(context(kind=kind))


def test_own_selections_are_not_trusted():
    class Mine(Poisson):
        def select(self, memory, ctx, gen):
            return torch.tensor([0])

    assert Poisson().sampling == "poisson" and Mine().sampling is None
    with pytest.raises(ConfigError, match="drawn by chance alone"):
        FedAvg(privacy=DpFedAvg(), selection=Mine()).check(context())


@pytest.mark.parametrize("hook", ["step", "answers"])
def test_an_own_way_around_the_noise_is_not_trusted(hook):
    mine = type("Mine", (FedAvg,), {hook: lambda self, *arguments: getattr(FedAvg, hook)(self, *arguments)})
    with pytest.raises(ConfigError, match=rf"^privacy=DpFedAvg: covers .* Mine has hooks of its own .*\({hook}\)"):
        mine(privacy=DpFedAvg(), selection=Poisson()).check(context())


def test_an_own_merge_is_not_trusted():
    class Sum(NoCompression):
        def merge(self, updates, weights, trained):
            return tree.apply(lambda leaf: leaf.sum(0), updates)

    with pytest.raises(ConfigError, match=r"^compression=Sum: does not take the mean of updates"):
        FedAvg(privacy=DpFedAvg(), compression=Sum()).check(context())


def test_what_is_frozen_or_constant_is_no_obstacle_and_stays():
    """A server takes nothing but trained entries, whatever clients send."""

    class Sending(FedProx):
        def loss(self, model, params, batch, client):
            keep({name: params[name] + 1 for name in model.buffers})
            return super().loss(model, params, batch, client)

    world = make_world()
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten()).requires_grad_(False)
    net.register_buffer("mask", torch.ones(3))
    model = Model(Classifier(net, nn.Linear(144, 4)).double())
    (done,) = rounds(Sending(privacy=DpFedAvg()), make_context(model, world, LOCAL), 1)
    assert {*done.uploads["update"]} == {"head.weight", "head.bias"}
    before, after = done.before["params"], done.after["params"]
    assert {name for name in before if not before[name].equal(after[name])} == {"head.weight", "head.bias"}


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"privacy\.clip_norm=null: noise is measured in units of this norm"):
        DpFedAvg(clip_norm=None)
    with pytest.raises(ConfigError, match=r"privacy\.noise_multiplier=-1: must be at least 0"):
        DpFedAvg(noise_multiplier=-1)
    for extreme in (1e-300, 1e300):
        with pytest.raises(ConfigError, match=r"privacy\.noise_multiplier=.*: must be 0, or from 1e-6 to 1e6"):
            DpFedAvg(noise_multiplier=extreme)


@pytest.mark.parametrize("optimizer", [{}, {"server_optimizer": Momentum()}], ids=["sgd", "momentum"])
def test_a_round_without_clients_adds_noise_alone(optimizer):
    """Server momentum takes it as it takes every update; without privacy nothing at all moves."""
    algorithm = FedAvg(privacy=DpFedAvg(noise_multiplier=0.5, clip_norm=0.2), selection=Poisson(), **optimizer)
    ctx = context(cohort=1, seed=3)
    seen = rounds(algorithm, ctx, 8)
    empty = [done for done in seen if not len(done.ids)]
    assert 0 < len(empty) < 8
    for done in empty:
        assert (done.bytes_up, done.bytes_down, done.examples, len(done.loss)) == (0, 0, 0, 0)
        assert done.after["memory"] is done.before["memory"]
    if optimizer:
        return
    moved = torch.cat([(done.after["params"][name] - done.before["params"][name]).flatten()
                       for done in empty for name in ctx.weights])  # fmt: skip
    assert float(moved.std()) == pytest.approx(0.5 * 0.2 / 1, rel=0.15)
    plain = replace(algorithm, privacy=FedAvg().privacy)
    for done in rounds(plain, ctx, 8):
        still = all(torch.equal(done.after["params"][name], done.before["params"][name]) for name in ctx.weights)
        assert still == (len(done.ids) == 0)


NOISY = [
    FedAvg(privacy=DpFedAvg(), selection=Poisson()), FedProx(mu=0.1, privacy=DpFedAvg(clip_norm=0.1)),
    FedPer(privacy=DpFedAvg(), compression=TopK(error_feedback=False)),
]  # fmt: skip


@pytest.mark.parametrize("algorithm", NOISY, ids=["poisson", "fedprox", "fedper+top_k"])
def test_mechanisms_agree_and_it_resumes(algorithm):
    assert_mechanisms_agree(algorithm)
    assert gap(*(play(algorithm, workers=count) for count in (1, 2))) < 1e-12
    assert_resumes(algorithm, count=3)


def test_statistics_that_stay_with_clients_are_no_obstacle():
    algorithm = FedBN(privacy=DpFedAvg(noise_multiplier=0.01))
    assert_mechanisms_agree(algorithm, "norm")
    (done,) = rounds(algorithm, context(kind="norm"), 1)
    assert not any("running" in name for name in done.uploads["update"])


def test_a_run_tells_its_epsilon_in_every_round(monkeypatch, tmp_path):
    words = ["privacy=dp_fedavg", "selection=poisson", "clients_per_round=1", "rounds=6", "seed=1"]
    assert run(monkeypatch, tmp_path, *words) == 0
    table, found = metrics(tmp_path), result(tmp_path)
    assert table["epsilon"].tolist() == [pytest.approx(epsilon(1.0, 20, 1, t, 1e-5, "poisson")) for t in range(1, 7)]
    assert table["local_loss"].isna().any()  # somewhere nobody took part
    assert found["delta"] == 1e-5 and found["privacy_assumes"].startswith("each client is drawn independently")
    assert found["status"] == "finished"


@pytest.mark.parametrize("kind", ["dp_fedavg", "adaptive_clipping"])
def test_without_noise_epsilon_is_infinite(monkeypatch, tmp_path, kind):
    assert run(monkeypatch, tmp_path, *FEW, f"privacy={kind}", "privacy.noise_multiplier=0", "rounds=2") == 0
    table = metrics(tmp_path)
    assert table["epsilon"].tolist() == table["epsilon_if_poisson"].tolist() == [float("inf")] * 2


@pytest.mark.parametrize("change", [{"wait_for": 2}, {"stragglers": 0.5}])
def test_poisson_sampling_s_epsilon_needs_devices_that_do_not_depend_on_one_another(change):
    """With wait_for one client more can push another one's answer out, which changes the sum by up to 2 C, not C."""
    world = make_world()
    ctx = make_context(make_model("linear", world), world, replace(LOCAL, epochs=2), 3)
    private = {"privacy": DpFedAvg(noise_multiplier=1.0, delta=1e-3), "selection": Poisson()}
    with pytest.raises(ConfigError, match=r"system=Devices: has stragglers or wait_for, by which one client more"):
        FedAvg(**private, system=Devices(**change)).check(ctx)
    FedAvg(**private, system=Devices(dropout=0.2, deadline=5.0)).check(ctx)
    FedAvg(privacy=private["privacy"], system=Devices(**change)).check(ctx)
