"""Adaptive clipping: the norm by hand, noise that costs what z does, what crosses, mechanisms and resume."""

import math

import pytest
import torch
from worlds import LOCAL, assert_mechanisms_agree, assert_resumes, make_context, make_model, make_world, rounds

from fedexp.algorithms.fedavg import FedAvg
from fedexp.errors import ConfigError
from fedexp.privacy.adaptive_clipping import AdaptiveClipping
from fedexp.privacy.dp_fedavg import scaled
from fedexp.selection.poisson import Poisson
from fedexp.system.devices import Devices

pytest.importorskip("dp_accounting", reason="epsilon needs the extra [privacy]")

QUIET = AdaptiveClipping(noise_multiplier=0.0)


def context(cohort=2, clients=6):
    world = make_world([10] * clients)
    return make_context(make_model("cnn", world), world, LOCAL, cohort)


@pytest.mark.parametrize(
    ("told", "expected"), [([True, True], 0.90483742), ([True, False], 1.0), ([False, False], 1.10517092), ([], 1.0)]
)
def test_the_norm_by_hand(told, expected):
    """From C = 1, both of two updates within it, one, none; nobody at all."""
    memory, answers = {"clip_norm": torch.tensor(1.0, dtype=torch.float64)}, {"within": torch.tensor(told)}
    after = QUIET.learn(memory, answers if told else {}, context(), 0)
    assert float(after["clip_norm"]) == pytest.approx(expected, abs=1e-8)


def test_the_bit_says_whether_the_norm_was_within():
    received = {"clip_norm": torch.tensor(1.0)}
    for size, within in ((0.5, True), (1.0, True), (5.0, False)):
        bounded, told = QUIET.clip({"x": torch.tensor([0.6, 0.8]) * size}, received)
        assert bool(told["within"]) is within
        assert float(bounded["x"].norm()) == pytest.approx(min(size, 1.0))


def test_noise_costs_with_the_count_s_what_z_does():
    """K = 100, sigma_b = 5, z = 1: 1.00503782 on the updates; what both cost together is z's."""
    ctx, privacy = context(100, 100), AdaptiveClipping(noise_multiplier=1.0)
    deviation = float(privacy.deviation({"clip_norm": torch.tensor(1.0, dtype=torch.float64)}, ctx))
    assert deviation == pytest.approx(1.00503782, abs=1e-8)
    assert deviation**-2 + (2 * 100 / 20) ** -2 == pytest.approx(1.0)
    louder = AdaptiveClipping(noise_multiplier=2.0).deviation({"clip_norm": torch.tensor(1.0)}, ctx)
    assert float(louder) == pytest.approx((1 / 4 - 1 / 100) ** -0.5)
    assert privacy.deviation({"clip_norm": torch.tensor(0.25)}, ctx) == pytest.approx(deviation / 4)
    assert privacy.metrics(privacy.init(ctx), 3, ctx, "poisson")["epsilon"] == pytest.approx(
        super(AdaptiveClipping, privacy).metrics({}, 3, ctx, "poisson")["epsilon"]
    )


def test_the_count_is_noisy():
    privacy = AdaptiveClipping(noise_multiplier=0.5, count_noise=3.0, rate=1.0)
    memory = {"clip_norm": torch.tensor(1.0, dtype=torch.float64)}
    told = {"within": torch.tensor([True, False])}
    moved = [-math.log(float(privacy.learn(memory, told, context(), number)["clip_norm"])) for number in range(400)]
    assert torch.tensor(moved).std().item() == pytest.approx(3.0 / 2, rel=0.15)


def test_the_norm_follows_the_quantile():
    """Twice the updates' median to begin with; with a larger step it comes near it, from either side."""
    for first in (100.0, 1e-3):
        privacy = AdaptiveClipping(noise_multiplier=0.0, clip_norm=first, rate=1.0)
        last = rounds(FedAvg(privacy=privacy), context(cohort=6), 25)[-10:]
        norms = [
            torch.cat([leaf.flatten(1) for leaf in done.uploads["update"].values()], 1).norm(dim=1) for done in last
        ]
        bound = [float(done.before["privacy"]["clip_norm"]) for done in last]
        clipped = [float((norm > limit * (1 - 1e-9)).double().mean()) for norm, limit in zip(norms, bound)]
        assert 0.1 < sum(clipped) / 10 < 0.9


def test_what_crosses_besides():
    """The norm down, 8 bytes in double precision; a truth value up, 1 byte."""
    ctx = context()
    (done,), (plain,) = (rounds(FedAvg(privacy=each), ctx, 1) for each in (QUIET, FedAvg().privacy))
    assert done.bytes_up == plain.bytes_up + 2 * 1
    assert done.bytes_down == plain.bytes_down + 2 * 8


@pytest.mark.parametrize("selection", [{}, {"selection": Poisson()}], ids=["uniform", "poisson"])
def test_mechanisms_agree_and_it_resumes(selection):
    algorithm = FedAvg(privacy=AdaptiveClipping(noise_multiplier=0.1), **selection)
    assert_mechanisms_agree(algorithm)
    assert_resumes(algorithm, count=3)


def test_only_the_median_is_followed_where_clients_may_fail():
    """The denominator is clients_per_round: with fewer answers the noisy share lies nearer to 1/2, and C would grow or
    shrink for ever."""
    ctx, failing = context(), Devices(dropout=0.5)
    for quantile, system in ((0.5, failing), (0.9, FedAvg().system)):
        privacy = AdaptiveClipping(noise_multiplier=0.1, quantile=quantile)
        FedAvg(privacy=privacy, system=system).check(ctx)
    with pytest.raises(
        ConfigError, match=r"^system=Devices: lets clients fail, .* can reach only privacy\.quantile=0\.5$"
    ):
        FedAvg(privacy=AdaptiveClipping(noise_multiplier=0.1, quantile=0.9), system=failing).check(ctx)


def test_a_norm_that_is_no_number_does_not_let_updates_through_unclipped():
    """The run then diverges, and says so."""
    assert scaled({"a": torch.ones(4)}, torch.tensor(math.nan))["a"].isnan().all()
    assert scaled({"a": torch.ones(4)}, torch.tensor(1.0))["a"].tolist() == [0.5] * 4
    assert scaled({"a": torch.ones(4)}, torch.tensor(2.5))["a"].tolist() == [1.0] * 4


def test_more_noise_than_the_count_allows_is_refused():
    with pytest.raises(ConfigError, match=r"privacy\.noise_multiplier=1\.0: must be below 2 count_noise = 0\.2"):
        FedAvg(privacy=AdaptiveClipping()).check(context())
    FedAvg(privacy=AdaptiveClipping(count_noise=0.6)).check(context())


def test_noise_on_the_count_alone_is_refused():
    with pytest.raises(ConfigError, match=r"privacy\.count_noise=0\.6: has no effect without noise on the updates"):
        FedAvg(privacy=AdaptiveClipping(noise_multiplier=0.0, count_noise=0.6)).check(context())
