"""The estimate of a round on a GPU: what is counted, by hand, and the table."""

import pytest
import torch
from program import SMALL
from torch.nn.functional import conv2d

from fedexp.cli import carry_out
from fedexp.cli.roofline import Demand, counted


def demand(work):
    found = counted(work)
    return found.kernels, found.bytes, found.operations


def test_a_product_reads_its_factors_and_writes_its_result():
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    assert demand(lambda: a @ b) == (1, 4 * (6 + 12 + 8), 2 * 2 * 3 * 4)


def test_views_cost_nothing_and_what_is_done_in_place_counts():
    x, y = torch.ones(6), torch.ones(6)
    assert demand(lambda: x.view(2, 3).t()[1:]) == (0, 0, 0)
    kernels, moved, _ = demand(lambda: x.add_(y))
    assert (kernels, moved) == (1, 4 * 3 * 6)


def test_the_gradients_of_a_grouped_convolution_cost_as_much_as_itself_each():
    """72 numbers of 2 channels x 3 x 3 products each: 72 x 18 multiplications and additions, and twice that for both
    gradients."""
    x, weight = torch.ones(2, 4, 5, 5, requires_grad=True), torch.ones(4, 2, 3, 3, requires_grad=True)
    y = conv2d(x, weight, groups=2)
    assert y.numel() == 72
    found = counted(lambda: torch.autograd.grad(y, (x, weight), torch.ones_like(y)))
    assert found.operations == 2 * (2 * 72 * 18)


@pytest.mark.parametrize(
    ("found", "seconds", "limit"),
    [
        (Demand(kernels=100, bytes=4.8e8, operations=6.7e9), 5e-4, "launches"),
        (Demand(kernels=100, bytes=4.8e9, operations=6.7e9), 1e-3, "memory"),
        (Demand(kernels=100, bytes=4.8e9, operations=6.7e11), 1e-2, "arithmetic"),
    ],
)
def test_the_longest_of_three_times_is_the_limit(found, seconds, limit):
    assert found.seconds(launch=5e-6) == (pytest.approx(seconds), limit)


def test_the_table_estimates_a_round_of_the_largest_client_s_steps(capfd):
    """Two clients of 25 examples: 3 steps of 10 an epoch, or 2 if the last is dropped; a step costs the same."""
    words = [*SMALL, "dataset=made", "dataset.shape=[1,8,8]", "dataset.train=50", "clients=2", "clients_per_round=2",
             "partition=iid", "local.batch_size=10", "local.epochs=4"]  # fmt: skip
    rounds = []
    for last in ("false", "true"):
        assert carry_out("roofline", [*words, f"local.drop_last={last}"]) == 0
        lines = [line for line in capfd.readouterr().out.splitlines() if line.strip()]
        assert lines[1].split() == ["case", "kernels", "MB", "GFLOP", "round", "ms", "replayed", "ms", "limit"]
        assert max(map(len, lines)) <= 80
        name, kernels, *_, eager, replayed, limit = lines[-1].split()
        assert name == "composed" and int(kernels) > 20 and limit == "launches"
        assert float(replayed) == pytest.approx(0.3 * float(eager), abs=0.1)  # 1.5 microseconds a launch, not 5
        rounds.append((int(kernels), float(eager)))
    (kernels, all_steps), (same, fewer) = rounds
    assert kernels == same
    assert all_steps == pytest.approx(12 * kernels * 0.005, abs=0.1) and fewer == pytest.approx(
        8 * 0.005 * same, abs=0.1
    )
