"""MOON: its neutral setting, its contrast by hand, what clients remember, its bytes."""

import math

import pytest
import torch
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

from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.moon import Moon
from fedexp.engine import Batch, Client, client_rows
from fedexp.errors import ConfigError
from fedexp.models import Classifier, Model


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("workers", [1, 2])
def test_mechanisms_agree(kind, workers):
    assert_mechanisms_agree(Moon(mu=2.0), kind, workers=workers)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mu_0_is_fedavg(kind):
    assert gap(play(Moon(mu=0.0), kind), play(FedAvg(), kind)) < 1e-12


def test_first_participation_has_no_contrast_and_the_second_has():
    """With all clients in every round, round 1 is FedAvg's and round 2 is not."""
    assert gap(play(Moon(), count=1, cohort=6), play(FedAvg(), count=1, cohort=6)) < 1e-12
    assert gap(play(Moon(), count=2, cohort=6), play(FedAvg(), count=2, cohort=6)) > 1e-3


def test_loss_by_hand():
    """Features (1, 0) and (3, 4) against the global model's (1, 0), (0, 1) and the last one's (0, 1), (0, 1)."""
    double = {"dtype": torch.float64}
    model = Model(Classifier(nn.Linear(2, 2, bias=False), nn.Linear(2, 2)).to(**double))

    def params(features):  # with the unit vectors as examples, the encoder's columns are their features
        head = {"head.weight": torch.eye(2, **double), "head.bias": torch.zeros(2, **double)}
        return {"encoder.weight": torch.tensor(features, **double).T, **head}

    now, everyones = params([[1.0, 0.0], [3.0, 4.0]]), params([[1.0, 0.0], [0.0, 1.0]])
    memory = {"previous": params([[0.0, 1.0], [0.0, 1.0]]), "took_part": torch.ones((), **double)}
    batch = Batch(torch.eye(2, **double), torch.tensor([0, 1]), torch.full((2,), 1 / 2, **double), torch.tensor(0))
    number = torch.tensor(0)
    client = Client({"model": everyones}, memory, {}, everyones, number, number, number, number, number, number)
    loss = Moon(mu=3.0, temperature=0.5).loss(model, now, batch, client)
    entropy = math.log(1 + math.exp(-1))  # logits (1, 0) for class 0, (3, 4) for class 1
    first = -math.log(math.exp(1 / 0.5) / (math.exp(1 / 0.5) + math.exp(0)))
    second = -math.log(math.exp(0.8 / 0.5) / (math.exp(0.8 / 0.5) + math.exp(0.8 / 0.5)))
    assert float(loss) == pytest.approx(entropy + 3.0 * (first + second) / 2, abs=1e-12)


def test_clients_keep_their_own_last_model_and_nobody_elses():
    world = make_world()
    model = make_model("cnn", world)
    (only,) = rounds(Moon(), make_context(model, world, LOCAL, cohort=2), 1)
    own = client_rows.take(only.after["memory"], torch.arange(6))["own"]
    for name, before in model.params().items():
        torch.testing.assert_close(own["previous"][name][only.ids], only.models[name])
        rest = [client for client in range(6) if client not in only.ids.tolist()]
        assert all(torch.equal(own["previous"][name][client], before) for client in rest)
    assert own["took_part"].nonzero().squeeze(1).tolist() == sorted(only.ids.tolist())


def test_bytes_are_fedavgs():
    """The last model never leaves the client."""
    world = make_world()
    entries = 4 * 9 + 4 + 4 * 4 + 36 * 4 + 4
    for done in rounds(Moon(), make_context(make_model("norm", world), world, LOCAL), 2):
        assert (done.bytes_up, done.bytes_down) == (3 * entries * 8, 3 * entries * 8)


def test_temperature_0_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.temperature"):
        Moon(temperature=0.0)


def test_resumes():
    assert_resumes(Moon(), "norm")
