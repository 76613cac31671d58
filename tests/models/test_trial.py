"""A model must train here as in an ordinary PyTorch loop; one that does not is refused before the first round."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from test_models import CASES
from torch import nn
from torch.utils.checkpoint import checkpoint

from fedexp.errors import ConfigError
from fedexp.models import Classifier, Model, trial
from fedexp.models.layers import Dropout
from fedexp.models.lstm import lstm


def compared(net, x=None):
    plain, before = copy.deepcopy(net), {name: leaf.clone() for name, leaf in net.state_dict().items()}
    model = Model(net)
    try:
        return trial.compare(model, plain, torch.randn(8, 4) if x is None else x, "mine.net")
    finally:
        assert all(torch.equal(leaf, before[name]) for name, leaf in net.state_dict().items())
        assert not any(layer.always_evaluates for layer in net.modules() if isinstance(layer, Dropout))


SMALL = [case for case in CASES if case[3] < 5_000_000]


@pytest.mark.parametrize(
    ("build", "shape", "classes"), [case[:3] for case in SMALL], ids=[f"{c[0].__name__} {c[1]} {c[2]}" for c in SMALL]
)
def test_fedexp_s_own_models_train_as_in_pytorch(build, shape, classes):
    assert compared(build(shape, classes), torch.randn(3, *shape)) == []


def test_the_lstm_does():
    assert compared(lstm((6,), 5, vocabulary=9), torch.randint(9, (3, 6))) == []


class Uses(nn.Module):
    """Two linear layers of which the first is used in a given way."""

    def __init__(self, how):
        super().__init__()
        self.first, self.second, self.how = nn.Linear(4, 5), nn.Linear(5, 3), how
        self.register_buffer("count", torch.zeros(()))
        self.scale = nn.Parameter(torch.ones(()))
        self.kept, self.calls = [self.first.weight], 0

    def forward(self, x):
        return self.second(getattr(self, self.how)(x).relu()) * self.scale

    def listed(self, x):
        return F.linear(x, self.kept[0], self.first.bias)

    def again(self, x):
        return checkpoint(self.first, x, use_reentrant=False)

    def counting(self, x):
        self.count += 1
        return self.first(x)

    def replacing(self, x):
        self.count = self.count + 1
        return self.first(x)

    def clamping(self, x):
        with torch.no_grad():
            self.first.weight.clamp_(-0.1, 0.1)
        return self.first(x)

    def noisy(self, x):
        return self.first(x + torch.randn_like(x))

    def remembering(self, x):
        self.calls += 1
        return self.first(x) / self.calls

    def in_place(self, x):
        return self.first(x.mul_(2))

    def plainly(self, x):
        return self.first(x)

    def without(self, x):
        return F.linear(x, self.first.weight)

    def straight_through(self, x):
        weight = self.first.weight
        return F.linear(x, weight + (weight.sign() - weight).detach(), self.first.bias)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "listed",
            "trains otherwise here than in an ordinary PyTorch loop, which finds other values of: .*first.weight",
        ),
        ("again", r"computes Linear again in the backward pass \(torch.utils.checkpoint\), which is not supported"),
        ("counting", "changes count as it is called, which only batch normalisation may do"),
        ("replacing", "changes count as it is called"),
        ("clamping", "changes first.weight as it is called"),
        ("noisy", "gives other logits when it is called again with the same weights and examples: it must not draw"),
        ("remembering", "gives other logits when it is called again"),
        ("in_place", "changes its input in place"),
    ],
)
def test_a_model_that_would_train_otherwise_is_refused(how, said):
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match=f"^{re.escape('model._target_=mine.net')}: {said}"):
        compared(Uses(how))


@pytest.mark.parametrize(("how", "unused"), [("plainly", []), ("without", ["first.bias"]), ("straight_through", [])])
def test_weights_that_no_gradient_reaches_are_named(how, unused):
    assert compared(Uses(how)) == unused


class PartlyFrozen(nn.Sequential):
    """Batch normalisation of which one is kept in evaluation mode by the net, and one is not."""

    def train(self, mode=True):
        super().train(mode)
        self[2].eval()
        return self


def test_batch_normalisation_dropout_tied_and_frozen_weights_are_as_in_pytorch():
    tied = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    tied[2].weight = tied[0].weight
    frozen = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    frozen[0].requires_grad_(False)
    normalised = PartlyFrozen(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    attention = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    attention.self_attn.dropout = 0.0
    for net in (tied, frozen, normalised, Classifier(nn.Linear(4, 5), nn.Linear(5, 3))):
        assert compared(net) == []
    texts = nn.Sequential(nn.Embedding(9, 4), attention, nn.Flatten(), nn.Linear(24, 5))
    assert compared(texts, torch.randint(9, (8, 6))) == []
