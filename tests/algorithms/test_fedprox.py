"""FedProx: its neutral setting, its gradient by hand, its bytes, its errors."""

import pytest
import torch
from worlds import by_hand, gap, make_context, make_model, make_world, play, rounds

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedprox import FedProx
from fedexp.engine import Local
from fedexp.errors import ConfigError


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mu_0_is_fedavg(kind):
    assert gap(play(FedProx(mu=0.0), kind), play(FedAvg(), kind)) == 0


def test_second_step_is_pulled_back_by_mu():
    """w1 = w0 - lr g(w0); w2 = w1 - lr (g(w1) + mu (w1 - w0)): the first step feels no pull, the second does."""
    world, lr, mu = make_world([12]), 0.5, 0.7
    model = make_model("linear", world)
    local = Local(epochs=2, batch_size=100, lr=lr, momentum=0.0)
    (only,) = rounds(FedProx(mu=mu), make_context(model, world, local, cohort=1), 1)
    w0 = model.params()
    w1 = by_hand(model, w0, world, 0, lr)
    plain = by_hand(model, w1, world, 0, lr)
    for name in w0:
        expected = plain[name] - lr * mu * (w1[name] - w0[name])
        torch.testing.assert_close(only.after["params"][name], expected, rtol=0, atol=1e-12)


def test_bytes_are_fedavg_s():
    """One model down, one up: the global model that the proximal term needs is the one that training starts from."""
    world = make_world()
    (only,) = rounds(FedProx(mu=0.1), make_context(make_model("cnn", world), world), 1)
    entries = 4 * 9 + 4 + 36 * 4 + 4  # convolution, head
    assert (only.bytes_up, only.bytes_down) == (3 * entries * 8, 3 * entries * 8)


def test_negative_mu_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.mu=-1.0.*at least 0"):
        FedProx(mu=-1.0)
