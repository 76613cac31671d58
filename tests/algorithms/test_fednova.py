"""FedNova: two clients of 1 and 3 steps on quadratics by hand, equal steps are FedAvg, bytes."""

from dataclasses import dataclass

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
)

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fednova import FedNova, path_length
from fedexp.algorithms.fedprox import FedProx
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.selection.uniform import Uniform
from fedexp.server_optimizer.momentum import Momentum

EQUAL = Uniform(merge="equal")


def quadratic(center, mu, momentum, steps):
    """Where momentum SGD with lr 0.1 leads from w = 1 on (w - center)^2 / 2 + mu / 2 (w - 1)^2."""
    w, speed = 1.0, 0.0
    for _ in range(steps):
        speed = momentum * speed + (w - center) + mu * (w - 1)
        w -= 0.1 * speed
    return w


@pytest.mark.parametrize(
    ("mu", "momentum", "tau_eff", "expected"),
    [
        (0.0, 0.0, "path", 1.171),  # d = (1, -2.71), tau_eff 2
        (0.0, 0.9, "path", 1.28896658), (0.0, 0.9, "steps", 1.17486631),  # ||a|| = 1, 5.61
        (1.0, 0.0, "path", 1.15777768), (1.0, 0.0, "steps", 1.17011070),  # ||a|| = 1, 2.71
    ],
)  # fmt: skip
def test_one_and_three_steps_by_hand(mu, momentum, tau_eff, expected):
    world = make_world([6, 6])
    ctx = make_context(make_model("linear", world), world, Local(lr=0.1, momentum=momentum), cohort=2)
    ends = torch.tensor([quadratic(0, mu, momentum, 1), quadratic(4, mu, momentum, 3)], dtype=torch.float64)
    uploads = {"update": {"head.bias": ends - 1}, "steps": torch.tensor([1, 3])}
    moved = FedNova(mu=mu, tau_eff=tau_eff).combine({"round": 0}, torch.tensor([0, 1]), uploads, ctx)
    assert 1 + float(moved["head.bias"]) == pytest.approx(expected, abs=1e-8)


def test_path_lengths_by_hand():
    """Momentum alone: 1 + 1.9 + 2.71. eta mu = .1 alone: .81 + .9 + 1. Both: speeds of 1, 1.8 and 2.34."""
    assert path_length(0.9, 0.0, 0.1, 3) == pytest.approx(1 + 1.9 + 2.71)
    assert path_length(0.0, 1.0, 0.1, 3) == pytest.approx(0.81 + 0.9 + 1)
    assert path_length(0.9, 1.0, 0.1, 3) == pytest.approx(5.14)
    assert path_length(0.9, 2.0, 0.05, 3) == pytest.approx(5.14)  # of eta and mu their product counts


@dataclass(frozen=True, kw_only=True)
class Slope(FedNova):
    """A gradient of 1 in w besides the proximal term's."""

    def loss(self, model, params, batch, client):
        return (params[NAME] + self.mu / 2 * (params[NAME] - client.start[NAME]).square()).sum()


@pytest.mark.parametrize(("momentum", "mu"), [(0.9, 0.0), (0.0, 1.0), (0.9, 1.0)])
@pytest.mark.parametrize("count", [1, 3])
def test_a_constant_gradient_leads_as_far_as_the_path(momentum, mu, count):
    """Of whatever length: what a real client of 1 to 3 batches makes of it, also in later rounds of a smaller rate."""
    local = Local(epochs=1, batch_size=1, lr=0.1, momentum=momentum, lr_decay=0.5)
    algorithm = Slope(mu=mu)
    done = rounds(algorithm, pair((1, 3), local=local), count)[-1]
    assert done.uploads["steps"].tolist() == [[1, 3][client] for client in done.ids.tolist()]
    lr = local.rate(count - 1)
    lengths = [path_length(momentum, mu, lr, steps) for steps in done.uploads["steps"].tolist()]
    assert done.uploads["update"][NAME].flatten().tolist() == pytest.approx([-lr * each for each in lengths], rel=1e-12)
    shares = [0.25 if client == 0 else 0.75 for client in done.ids.tolist()]
    moved = weight(done.after["params"]) - weight(done.before["params"])
    effective = sum(share * length for share, length in zip(shares, lengths))
    assert moved == pytest.approx(-lr * effective, rel=1e-12)


class OnQuadratics(FedNova, Quadratic):
    """FedNova over quadratics."""


@pytest.mark.parametrize(("algorithm", "expected"), [(Quadratic, 2.921833), (OnQuadratics, 1.898424)])
def test_fixed_points_of_one_and_three_steps(algorithm, expected):
    """Of client 0 (center 0) one step and of client 1 (center 4) three, weighted alike: the optimum is 2."""

    local = Local(epochs=1, batch_size=1, lr=0.1, momentum=0.0)
    done = rounds(algorithm(selection=EQUAL), pair((1, 3), local=local), 80)[-1]
    assert weight(done.after["params"]) == pytest.approx(expected, abs=1e-6)


def test_with_momentum_at_the_server():
    """Heavy ball on w + tau_eff sum p d: the published code's gmf."""
    ctx = pair((1, 3), local=Local(epochs=1, batch_size=1, lr=0.1, momentum=0.0))
    first, second = rounds(OnQuadratics(server_optimizer=Momentum(beta=0.5), selection=EQUAL), ctx, 2)
    (alone,) = rounds(OnQuadratics(selection=EQUAL), ctx, 1)
    moved = weight(first.after["params"]) - 1
    assert 1 + moved == weight(alone.after["params"]) == pytest.approx(1.171)
    (again,) = rounds(OnQuadratics(selection=EQUAL), ctx, 1, {**alone.after, "round": 1})
    step = weight(again.after["params"]) - weight(alone.after["params"])
    assert weight(second.after["params"]) == pytest.approx(1.171 + 0.5 * moved + step, rel=1e-12)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_equal_steps_are_fedavg(mu):
    """With its own proximal term FedProx; with momentum and statistics."""
    local = Local(**{**vars(LOCAL), "steps": 3, "max_grad_norm": None})
    plain = FedProx(mu=mu) if mu else FedAvg()
    assert gap(play(FedNova(mu=mu), "norm", local=local), play(plain, "norm", local=local)) < 1e-12
    assert gap(play(FedNova(mu=mu), "norm"), play(plain, "norm")) > 1e-3


def test_mechanisms_agree_and_it_resumes():
    assert_mechanisms_agree(FedNova(mu=0.1), "norm")
    assert_resumes(FedNova(mu=0.1), "norm")


def test_bytes_are_fedavg_s_and_the_number_of_steps():
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(FedNova(), make_context(model, world), 1)
    size = tree.size_in_bytes(model.params())
    assert (only.bytes_up, only.bytes_down) == (3 * (size + 8), 3 * size)


def test_adam_is_refused():
    world = make_world()
    with pytest.raises(ConfigError, match=r"local\.optimizer"):
        FedNova().check(make_context(make_model("linear", world), world, Local(optimizer="adam")))
