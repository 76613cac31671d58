"""What the engine says of a cohort's training: how many examples it went through, how far a gradient leads."""

from dataclasses import dataclass

import pytest
import torch
from worlds import SIZES, make_context, make_model, make_world, rounds

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Local
from fedexp.engine.schedule import batches

SEEN = []


@pytest.mark.parametrize(
    ("settings", "of_one"),  # a client of 17 examples
    [({"epochs": 2}, 34), ({"epochs": 2, "drop_last": True}, 32), ({"steps": 1}, 8), ({"steps": 3}, 17),
     ({"steps": 4}, 25), ({"steps": 7, "drop_last": True}, 56)],
)  # fmt: skip
def test_examples_are_those_that_batches_held(settings, of_one):
    class Counting(FedAvg):
        def loss(self, model, params, batch, client):
            SEEN.append(int(batch.weight.sum()))
            return super().loss(model, params, batch, client)

    local, world = Local(batch_size=8, lr=0.1, **settings), make_world()
    SEEN.clear()
    (done,) = rounds(Counting(), make_context(make_model("linear", world), world, local, cohort=len(SIZES)), 1)
    assert done.examples == sum(SEEN)
    assert local.examples(17) == of_one


def test_a_round_of_any_length_is_planned_an_epoch_at_a_time():
    plan = batches(0, 0, 0, 10, Local(epochs=10**9, batch_size=4))
    epoch = torch.cat([next(plan) for _ in range(3)])
    assert sorted(epoch.tolist()) == list(range(10))
    assert len(list(batches(0, 0, 0, 10, Local(steps=7, batch_size=4)))) == 7


@dataclass(frozen=True, kw_only=True)
class Constant(FedAvg):
    """A gradient of 3 in each entry of the bias, whatever the examples; uploads the path that it is told."""

    def loss(self, model, params, batch, client):
        return 3 * params["head.bias"].sum() + 0 * params["head.weight"].sum()

    def upload(self, params, client):
        return {**super().upload(params, client), "path": client.path, "steps": client.steps}


@pytest.mark.parametrize(("momentum", "lengths"), [(0.5, [1, 2.5, 4.25, 6.125]), (0.0, [1, 2, 3, 4])])
def test_a_path_is_as_long_as_training_on_a_constant_gradient_goes(momentum, lengths):
    """By hand, with momentum .5: steps of 1, 1.5, 1.75 and 1.875 gradients."""
    world = make_world()
    model = make_model("linear", world)
    for steps, length in enumerate(lengths, start=1):
        local = Local(steps=steps, batch_size=8, lr=0.1, momentum=momentum)
        assert float(local.path(torch.tensor(steps))) == pytest.approx(length, rel=1e-15)
        (done,) = rounds(Constant(), make_context(model, world, local, cohort=1), 1)
        moved = model.params()["head.bias"] - done.after["params"]["head.bias"]
        assert moved.tolist() == pytest.approx([0.1 * 3 * length] * 4, rel=1e-12)
        assert (done.uploads["path"].tolist(), done.uploads["steps"].tolist()) == ([length], [steps])
