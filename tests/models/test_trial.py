"""A model must train here as in an ordinary PyTorch loop; one that does not is refused before the first round."""

import random
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


def compared(build, x=None):
    """What a comparison of the net that `build` makes finds; it leaves the model as it was."""
    net, plain = build(), build()
    model = Model(net)
    before = model.params()
    try:
        return trial.compare(model, plain, torch.randn(8, 4) if x is None else x, "mine.net")
    finally:
        assert all(torch.allclose(leaf, before[name], 0, 0, equal_nan=True) for name, leaf in model.params().items())
        assert not any(layer.always_evaluates for layer in net.modules() if isinstance(layer, Dropout))


SMALL = [case for case in CASES if case[3] < 5_000_000]


@pytest.mark.parametrize(
    ("build", "shape", "classes"), [case[:3] for case in SMALL], ids=[f"{c[0].__name__} {c[1]} {c[2]}" for c in SMALL]
)
def test_fedexp_s_own_models_train_as_in_pytorch(build, shape, classes):
    assert compared(lambda: build(shape, classes), torch.randn(3, *shape)) == ([], False)


def test_the_lstm_does():
    assert compared(lambda: lstm((6,), 5, vocabulary=9), torch.randint(9, (3, 6))) == ([], False)


class Uses(nn.Module):
    """Two linear layers of which the first is used in a given way."""

    def __init__(self, how):
        super().__init__()
        self.first, self.second, self.how = nn.Linear(4, 5), nn.Linear(5, 3), how
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("unknown", torch.full((2,), float("nan")))
        self.register_buffer("infinite", torch.tensor([0.0, -torch.inf]))
        self.scale, self.tiny = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
        self.kept, self.calls = [self.first.weight, self.tiny], 0
        self.closure = lambda x: self.first(x) * self.scale
        self.seen = None
        self.second.register_forward_hook(lambda *arguments: setattr(self, "seen", arguments[2]))

    def forward(self, x):
        self.second(getattr(self, self.how)(x).relu())
        return self.seen * self.scale

    def listed(self, x):
        return F.linear(x, self.kept[0], self.first.bias)

    def listed_with_a_tiny_gradient(self, x):
        return self.first(x) + 1e-12 * self.kept[1]

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
        return self.first(x + 1e-4 * torch.randn_like(x))

    def noisy_in_python(self, x):
        return self.first(x * random.random())

    def remembering(self, x):
        self.calls += 1
        return self.first(x) * (1 + 1e-4 * self.calls)

    def in_place(self, x):
        return self.first(x.mul_(2))

    def plainly(self, x):
        return self.first(x)

    def without(self, x):
        return F.linear(x, self.first.weight)

    def in_a_closure(self, x):
        return self.closure(x)

    def of_one_type(self, x):
        return self.first(x) + torch.ones(len(x), 1) @ torch.ones(1, 5, dtype=self.first.weight.dtype)

    def straight_through(self, x):
        weight = self.first.weight
        return F.linear(x, weight + (weight.sign() - weight).detach(), self.first.bias)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "listed",
            "trains otherwise here than in an ordinary PyTorch loop, .* of the logits, the gradient of .* more; is",
        ),
        ("listed_with_a_tiny_gradient", "trains otherwise .* another value of the gradient of tiny; is a weight"),
        ("again", r"computes Linear again in the backward pass \(torch.utils.checkpoint\), which is not supported"),
        ("counting", "changes count as it is called, which only batch normalisation may do"),
        ("replacing", "changes count as it is called"),
        ("clamping", "changes first.weight as it is called"),
        ("noisy", "gives other logits when it is called again with the same weights and examples: it must not draw"),
        ("noisy_in_python", "gives other logits when it is called again"),
        ("remembering", "gives other logits when it is called again"),
        ("in_place", "changes its input in place"),
    ],
)
def test_a_model_that_would_train_otherwise_is_refused(how, said):
    with pytest.raises(ConfigError, match=f"^{re.escape('model._target_=mine.net')}: {said}"):
        compared(lambda: Uses(how))


@pytest.mark.parametrize(
    ("how", "unused"),
    [
        ("plainly", ["tiny"]),
        ("without", ["tiny", "first.bias"]),
        ("straight_through", ["tiny"]),
        ("in_a_closure", ["tiny"]),
        ("of_one_type", ["tiny"]),
    ],
)
def test_weights_that_no_gradient_reaches_are_named(how, unused):
    """In nets with hooks and closures, too, and in one that cannot compute in double precision."""
    assert compared(lambda: Uses(how)) == (unused, False)


class Another(Classifier):
    def forward(self, x, part="all"):
        return super().forward(x, part) * (2 if part == "all" else 1)


def test_a_classifier_is_its_head_after_its_encoder():
    with pytest.raises(ConfigError, match=r"is a Classifier, whose forward must be its head after its encoder"):
        compared(lambda: Another(nn.Linear(4, 5), nn.Linear(5, 3)))


class Noisy(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, self.training)


class Inherits(Noisy):
    pass


class TwoOutputs(nn.Linear):
    def forward(self, x):
        return (super().forward(x), x) if self.training else super().forward(x)


@pytest.mark.parametrize("build", [lambda: nn.Sequential(Inherits(), nn.Linear(4, 3)), lambda: TwoOutputs(4, 3)])
def test_what_depends_on_training_is_told(build):
    assert compared(build).asks


class SometimesNoisy(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (2 if self.training and random.random() < 1e-6 else 1)


class Compiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.compile(nn.Linear(4, 3))

    def forward(self, x):
        return self.net(x)


def test_what_training_draws_is_told_though_one_batch_may_not_show_it():
    before = random.getstate()
    assert compared(lambda: SometimesNoisy(4, 3)).asks
    assert random.getstate() == before


def test_a_compiled_model_runs_as_it_is_written():
    assert compared(Compiled) == ([], False)


def test_recurrent_layers_stay_in_training_mode_beside_what_depends_on_it():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.noise, self.head = nn.GRU(4, 5, batch_first=True), Noisy(), nn.Linear(5, 3)

        def forward(self, x):
            return self.head(self.noise(self.inner(x)[0][:, -1]))

    modes = []
    net, plain = Recurrent(), Recurrent()
    plain.inner.register_forward_pre_hook(lambda layer, _: modes.append(layer.training))
    assert trial.compare(Model(net), plain, torch.randn(8, 6, 4), "mine.net").asks
    assert modes == [True, True]  # a GPU cannot differentiate it in another


class PartlyFrozen(nn.Sequential):
    """Batch normalisation of which one is kept in evaluation mode by the net, and one is not."""

    def train(self, mode=True):  # without a result, as users write it
        super().train(mode)
        self[2].eval()


def _tied():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    net[2].weight = net[0].weight
    return net


def _frozen():
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    net[0].requires_grad_(False)
    return net


def _deep():
    """In single precision its gradients are nothing but rounding."""
    layers = [layer for _ in range(20) for layer in (nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(4, 3))


@pytest.mark.parametrize(
    "build",
    [
        _tied,
        _frozen,
        _deep,
        lambda: PartlyFrozen(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)),
        lambda: Classifier(nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5)), nn.Linear(5, 3)),
        lambda: nn.utils.weight_norm(nn.Linear(4, 3)),  # which cannot be copied
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_tied_frozen_and_uncopied_weights_normalisation_and_dropout_are_as_in_pytorch(build):
    assert compared(build) == ([], False)


def test_a_transformer_is_as_in_pytorch():
    def build():
        attention = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        attention.self_attn.dropout = 0.0
        return nn.Sequential(nn.Embedding(9, 4), attention, nn.Flatten(), nn.Linear(24, 5))

    assert compared(build, torch.randint(9, (8, 6))) == ([], False)


class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


def test_what_cannot_be_vectorized_is_noticed():
    trial.vectorize(Model(nn.Linear(4, 3)), torch.randn(8, 4))
    with pytest.raises(RuntimeError, match="vmap"):
        trial.vectorize(Model(Branching(4, 3)), torch.randn(8, 4))
