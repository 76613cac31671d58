"""FedAvgM, FedAdagrad, FedAdam and FedYogi by their names: rounds of two clients by hand, bytes, FedAvg's clients.

The server's steps themselves are tested in tests/server_optimizer.
"""

from dataclasses import replace

import pytest
from composing import composed
from quadratics import Quadratic, pair, weight
from worlds import LOCAL, make_context, make_model, make_world, rounds

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.building import build_algorithm


def named(*words):
    return build_algorithm(composed(*words))


def on_quadratics(algorithm):
    """The same parts, over losses that can be followed by hand."""
    return Quadratic(**vars(algorithm))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("algorithm=fedavgm", [1.1, 1.28, 1.514]),
        ("algorithm=fedavgm server_optimizer.nesterov=true", [1.19, 1.4249, 1.672679]),
        ("algorithm=fedadagrad", [1.09900500, 1.16544686]),
        ("algorithm=fedadagrad server_optimizer.v_init=0", [1.09900990, 1.16545338]),
        ("algorithm=fedadam", [1.09050283, 1.21515299]),
        ("algorithm=fedadam server_optimizer.v_init=0", [1.09090909, 1.21586736]),
        ("algorithm=fedadam server_optimizer.v_init=0 server_optimizer.bias_correction=true", [1.09090909, 1.18368558]),
        ("algorithm=fedyogi", [1.09049876, 1.21482630]),
        ("algorithm=fedyogi server_optimizer.v_init=0", [1.09090909, 1.21554841]),
    ],
)
def test_rounds_by_hand(words, expected):
    """From w = 1, one step each: the mean update of both is (2 - w) / 10."""
    found = rounds(on_quadratics(named(*words.split())), pair(), len(expected))
    assert [weight(done.after["params"]) for done in found] == pytest.approx(expected, abs=5e-9)


@pytest.mark.parametrize("name", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_clients_train_and_exchange_as_under_fedavg(name):
    """One model down and one up: the server remembers its steps by itself."""
    world = make_world()
    model = make_model("norm", world)
    (done,), (plain,) = (
        rounds(each, make_context(model, world, LOCAL), 1) for each in (named(f"algorithm={name}"), FedAvg())
    )
    assert done.bytes_up == done.bytes_down == 3 * tree.size_in_bytes(model.params())
    for each, update in plain.uploads["update"].items():
        assert update.equal(done.uploads["update"][each])
    assert replace(done.algorithm, server_optimizer=FedAvg().server_optimizer) == FedAvg()
