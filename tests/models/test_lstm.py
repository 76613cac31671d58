"""LSTM and GRU layers: PyTorch's numbers in either form, vectorized, in training and evaluation; the next-character
model."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from worlds import assert_mechanisms_agree, assert_resumes, gap, make_context, rounds

from fedexp.algorithms.cadis import Cadis
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedgen import FedGen
from fedexp.algorithms.label_clusters import LabelClusters
from fedexp.algorithms.moon import Moon
from fedexp.data import Transform
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.models import Classifier, Model
from fedexp.models.layers import training
from fedexp.models.lstm import lstm
from fedexp.models.purify import purify
from fedexp.world import World

KEY = torch.tensor(0)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("settings", [{}, {"num_layers": 2}, {"bias": False}], ids=str)
def test_both_forms_are_pytorch_s(kind, settings):
    torch.manual_seed(0)
    plain = kind(3, 5, batch_first=True, **settings).double()
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    expected, state = plain(x)
    weights = {name: value.detach() for name, value in plain.named_parameters()}
    wanted = torch.autograd.grad(expected.square().sum(), list(plain.parameters()))
    own = purify(nn.Sequential(plain))[0]
    assert type(own) is not kind and dict(own.named_parameters()).keys() == weights.keys()
    for alone in (False, True):
        with training(None, KEY, alone):
            outputs, last = own(x)
            found = torch.autograd.grad(outputs.square().sum(), list(own.parameters()))
        torch.testing.assert_close((outputs, last), (expected, state))
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(own(x)[0], expected)  # outside training

    def loss(params, x):
        with training(None, KEY):
            return functional_call(own, params, (x,))[0].square().sum()

    stack, batches = {name: torch.stack([value, 2 * value]) for name, value in weights.items()}, torch.stack([x, x])
    together = vmap(grad(loss))(stack, batches)
    for row in range(2):
        one = grad(loss)({name: value[row] for name, value in stack.items()}, x)
        for name, value in one.items():
            torch.testing.assert_close(together[name][row], value)


@pytest.mark.parametrize(
    "layer",
    [nn.LSTM(3, 3), nn.LSTM(3, 3, batch_first=True, bidirectional=True),
     nn.LSTM(3, 3, 2, batch_first=True, dropout=0.1), nn.LSTM(3, 3, batch_first=True, proj_size=2),
     nn.GRU(3, 3), nn.GRU(3, 3, batch_first=True, bidirectional=True)],
    ids=str,
)  # fmt: skip
def test_other_recurrent_layers_are_refused(layer):
    right = f"0: {type(layer).__name__} must be batch_first, in one direction, without dropout or projection"
    with pytest.raises(TypeError, match=right):
        purify(nn.Sequential(layer))
    with pytest.raises(TypeError, match=r"0: RNN has no pure form here; use nn\.LSTM or nn\.GRU"):
        purify(nn.Sequential(nn.RNN(3, 3, batch_first=True)))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=lambda kind: kind.__name__)
def test_a_first_state_of_one_s_own_is_refused(kind):
    with pytest.raises(TypeError, match="starts from zeros here"):
        purify(kind(3, 3, batch_first=True))(torch.zeros(2, 4, 3), torch.zeros(1, 2, 3))


def test_the_next_character_model():
    """Embedding 80 * 8; layers 4 * 256 * (8 + 256 + 2) and 4 * 256 * (512 + 2); head 80 * 257."""
    model = Model(lstm((80,), 80))
    params = model.params()
    assert sum(leaf.numel() for leaf in params.values()) == 640 + 272_384 + 526_336 + 20_560 == 819_920
    assert (model.features, model.classes, model.splits) == (256, 80, True)
    for layer in (0, 1):
        both = params[f"encoder.lstm.bias_ih_l{layer}"] + params[f"encoder.lstm.bias_hh_l{layer}"]
        assert (both[256:512] == 1).all() and not (both[:256] == 1).any()
    tokens = torch.randint(0, 80, (3, 80))
    assert model(params, tokens).shape == (3, 80)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 80
    assert (model(params, tokens) != model(params, changed)).any()  # the last step remembers the first


@pytest.mark.parametrize(
    ("shape", "settings", "said"),
    [
        ((1, 8, 8), {}, r"model=lstm: needs examples of one dimension"),
        ((9,), {"hidden": 0}, r"model\.hidden=0: must be"),
    ],
)
def test_what_cannot_work_is_refused(shape, settings, said):
    with pytest.raises(ConfigError, match=said):
        lstm(shape, 5, **settings)


def texts(*arguments, **more):
    """Six clients, whose next token is the one before the last."""
    draw = torch.Generator().manual_seed(5)
    x = torch.randint(0, 5, (160, 6), generator=draw, dtype=torch.int16)
    y, sizes = x[:, -2].long(), torch.tensor([5, 40, 17, 30, 8, 20])
    return World(x[:120], y[:120], x[120:], y[120:], torch.arange(120), sizes, 5, Transform(), torch.float64)


def model(*arguments, **more):
    torch.manual_seed(1)
    return Model(lstm((6,), 5, embedding=3, hidden=7).double())


@pytest.fixture
def texts_for_all(monkeypatch):
    import worlds

    monkeypatch.setattr(worlds, "make_world", texts)
    monkeypatch.setattr(worlds, "make_model", model)


OTHERS = [FedAvg(), Moon(), Cadis(), FedGen(task_batch=8, server_steps=2)]


@pytest.mark.parametrize("algorithm", OTHERS, ids=lambda algorithm: type(algorithm).__name__)
def test_mechanisms_agree_on_text(texts_for_all, algorithm):
    assert_mechanisms_agree(algorithm)


def test_it_resumes_on_text_and_two_workers_are_one(texts_for_all):
    import worlds

    assert_resumes(FedAvg(), count=2)
    assert gap(*(worlds.play(FedAvg(), workers=count) for count in (1, 2))) < 1e-12


def test_it_learns_what_comes_next():
    local = Local(epochs=3, batch_size=8, lr=0.5, momentum=0.9)
    done = rounds(FedAvg(), make_context(model(), texts(), local, 6, engine="vectorized"), 10)
    assert float(done[0].loss.mean()) > 1.5 and float(done[-1].loss.mean()) < 1.3


def test_random_inputs_are_refused_for_tokens():
    with pytest.raises(ConfigError, match=r"algorithm\.labels=random_inputs: draws random numbers"):
        LabelClusters(labels="random_inputs").check(make_context(model(), texts()))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=lambda kind: kind.__name__)
def test_a_user_s_own_recurrent_model_trains(texts_for_all, monkeypatch, kind):
    import worlds

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.layer = nn.Embedding(5, 3), kind(3, 4, batch_first=True)

        def forward(self, x):
            last = self.layer(self.embedding(x))[1]
            return (last[0] if kind is nn.LSTM else last)[-1]

    def own(*arguments):
        torch.manual_seed(2)
        return Model(Classifier(Own(), nn.Linear(4, 5)).double())

    monkeypatch.setattr(worlds, "make_model", own)
    assert_mechanisms_agree(FedAvg(), count=2)
