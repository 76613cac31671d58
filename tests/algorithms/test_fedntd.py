"""FedNTD: the distillation by hand, its teacher, its neutral settings, bytes, mechanisms, resume."""

import math

import pytest
import torch
import torch.nn.functional as F
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
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedntd import FedNTD, not_true
from fedexp.engine import Batch, Client, Local
from fedexp.errors import ConfigError
from fedexp.models import Classifier, Model
from fedexp.models.layers import training


def loss_of(local, received, y=(0,), weight=(1.0,), **settings):
    """The loss of an identity of logits: the heads' biases are the logits."""
    model = Model(Classifier(nn.Flatten(), nn.Linear(1, len(local))).double())

    def params(logits):
        zero = torch.zeros(len(local), 1, dtype=torch.float64)
        return {"head.weight": zero, "head.bias": torch.tensor(logits, dtype=torch.float64)}

    x = torch.zeros(len(y), 1, dtype=torch.float64)
    share = torch.tensor(weight, dtype=torch.float64) / sum(weight)
    batch = Batch(x, torch.tensor(y), share, torch.tensor(0))
    client = Client({}, {}, {}, params(received), *[torch.tensor(1)] * 6)
    return float(FedNTD(**settings).loss(model, params(local), batch, client))


def test_the_loss_by_hand():
    """y 0: cross-entropy .40760596. KL at tau 1 .50092654, at tau 3 .06049184 (times 9: .54442659)."""
    logits = (2.0, 1.0, 0.0), (0.0, 0.0, math.log(3))
    assert loss_of(*logits, beta=0.0) == pytest.approx(0.40760596, abs=5e-9)
    assert loss_of(*logits) == pytest.approx(0.90853251, abs=5e-9)
    assert loss_of(*logits, temperature=3.0) == pytest.approx(0.95203256, abs=5e-9)
    assert loss_of(*logits, beta=0.5) == pytest.approx(0.40760596 + 0.50092654 / 2, abs=1e-8)
    assert loss_of(*logits, y=(0, 1), weight=(1.0, 0.0)) == pytest.approx(0.90853251, abs=5e-9)  # padding


def test_the_true_class_of_the_teacher_does_not_matter():
    own = 2.0, 1.0, 0.0
    assert loss_of(own, (0.0, 0.0, 1.0)) == loss_of(own, (9.0, 0.0, 1.0))
    assert loss_of(own, (0.0, 0.0, 1.0)) != loss_of(own, (0.0, 9.0, 1.0))


def test_not_true_logits():
    logits = torch.arange(12).view(3, 4)
    assert not_true(logits, torch.tensor([0, 2, 3])).tolist() == [[1, 2, 3], [4, 5, 7], [8, 9, 10]]


def test_with_two_classes_there_is_nothing_to_distil():
    assert loss_of((2.0, 1.0), (0.0, 5.0)) == loss_of((2.0, 1.0), (0.0, 5.0), beta=0.0)
    world = make_world(classes=2)
    ctx = make_context(make_model("cnn", world), world, LOCAL)
    (done,), (plain,) = (rounds(each, ctx, 1) for each in (FedNTD(), FedAvg()))
    assert gap(done.after, plain.after) == 0


def test_the_first_step_is_fedavg_s_and_the_second_is_pulled_back():
    """A student that is its teacher: the term is 0 and so is its gradient."""
    world = make_world()
    model = make_model("cnn", world)
    for steps, differs in ((1, False), (2, True)):
        ctx = make_context(model, world, Local(steps=steps, batch_size=100, lr=0.5, momentum=0.0))
        (done,), (plain,) = (rounds(each, ctx, 1) for each in (FedNTD(beta=5.0), FedAvg()))
        assert (gap(done.after, plain.after) > 1e-4) == differs
        assert gap(done.after, plain.after) < 1e-12 or differs


def test_the_teacher_evaluates():
    """With running statistics and without dropout, inside the pass in which its student trains."""
    world = make_world()
    model = make_model("norm", world)
    params, rows = model.params(), world.of(1)
    x, y, key = world.prepare(rows), world.y[rows], torch.tensor(5)
    client = Client({}, {}, {}, params, *[torch.tensor(1)] * 6)
    with training(None, key):
        share = torch.full((len(y),), 1 / len(y), dtype=torch.float64)
        found = FedNTD(temperature=2.0).loss(model, params, Batch(x, y, share, key), client)
        own = model(params, x)
    teacher = model(params, x, training=False)
    assert not torch.allclose(own, teacher)
    expected = F.cross_entropy(own, y)
    for k in range(len(y)):
        others = [c for c in range(4) if c != y[k]]
        q, p = (F.softmax(each[k, others] / 2, 0) for each in (teacher, own))
        expected = expected + 4 * (q * (q / p).log()).sum() / len(y)
    assert float(found) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_beta_0_is_fedavg(kind):
    assert gap(play(FedNTD(beta=0.0), kind), play(FedAvg(), kind)) < 1e-12
    assert gap(play(FedNTD(), kind), play(FedAvg(), kind)) > 1e-4


def test_bytes_are_fedavg_s():
    world = make_world()
    model = make_model("norm", world)
    (only,) = rounds(FedNTD(), make_context(model, world), 1)
    assert only.bytes_up == only.bytes_down == 3 * tree.size_in_bytes(model.params())


def test_mechanisms_agree_and_it_resumes():
    assert_mechanisms_agree(FedNTD(), "norm")
    assert gap(*(play(FedNTD(), "norm", workers=count) for count in (1, 2))) < 1e-12
    assert_resumes(FedNTD(), "norm")


def test_settings_are_checked():
    for change in ({"beta": -1.0}, {"temperature": 0.0}):
        with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(change))}="):
            FedNTD(**change)
