"""Parameter counts of every model, the split into encoder and head, and the pure layers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jvp

from fedexp.errors import ConfigError
from fedexp.models import Classifier, Model
from fedexp.models.keyword import kws_cnn
from fedexp.models.layers import BatchNorm, Dropout, training
from fedexp.models.mcmahan import mcmahan_cnn
from fedexp.models.purify import purify
from fedexp.models.resnet import resnet9, resnet18, resnet50
from fedexp.models.simple import simple_cnn, simple_cnn_wide
from fedexp.models.tf_tutorial import LocalResponse, tf_cnn
from fedexp.models.vgg import vgg9

CASES = [
    (mcmahan_cnn, (1, 28, 28), 10, 1_663_370, 0, 512),
    (mcmahan_cnn, (1, 28, 28), 62, 1_690_046, 0, 512),
    (mcmahan_cnn, (3, 32, 32), 10, 2_156_490, 0, 512),
    (mcmahan_cnn, (1, 8, 8), 10, 188_810, 0, 512),
    (tf_cnn, (3, 24, 24), 10, 1_068_298, 0, 192),
    (tf_cnn, (3, 24, 24), 20, 1_070_228, 0, 192),
    (tf_cnn, (3, 32, 32), 10, 1_756_426, 0, 192),
    (simple_cnn, (3, 32, 32), 10, 62_006, 0, 84),
    (simple_cnn, (3, 32, 32), 20, 62_856, 0, 84),
    (simple_cnn, (1, 28, 28), 10, 44_426, 0, 84),
    (kws_cnn, (1, 50, 10), 10, 68_980, 0, 128),
    (kws_cnn, (1, 49, 10), 12, 69_238, 0, 128),
    (simple_cnn_wide, (3, 32, 32), 10, 5 * 61_156 + 4_210, 0, 420),
    (simple_cnn_wide, (1, 28, 28), 10, 5 * 43_576 + 4_210, 0, 420),
    (vgg9, (3, 32, 32), 10, 3_491_530, 0, 512),
    (vgg9, (1, 28, 28), 10, 4_015_754, 0, 512),
    (resnet9, (3, 32, 32), 10, 1_647_242, 2_240, 256),
    (resnet9, (3, 32, 32), 100, 1_670_372, 2_240, 256),
    (resnet18, (3, 32, 32), 15, 11_176_527, 9_600, 512),
    (resnet50, (3, 32, 32), 10, 23_520_842, 53_120, 2048),
    (resnet50, (3, 32, 32), 200, 23_910_152, 53_120, 2048),
]


@pytest.mark.parametrize(("build", "shape", "classes", "weights", "buffers", "width"), CASES)
def test_parameters(build, shape, classes, weights, buffers, width):
    model = Model(build(shape, classes))
    params = model.params()
    assert sum(params[name].numel() for name in model.weights) == weights
    assert sum(params[name].numel() for name in model.buffers) == buffers
    assert model.features == width
    assert model.classes == classes
    assert params["head.weight"].shape == (classes, width)


@pytest.mark.parametrize("shape", [(24, 24), (9, 10), (11, 13), (25, 8)])
def test_tf_cnn_pools_pad_as_tensorflow_s_same(shape):
    """As many as 2 (ceil(n / 2) - 1) + 3 - n in all, the larger half of them at the end."""
    encoder = tf_cnn((3, *shape), 10).encoder
    x = torch.randn(2, 64, *shape)
    for pool in (layer for layer in encoder if isinstance(layer, nn.MaxPool2d)):
        more = [2 * (-(-side // 2) - 1) + 3 - side for side in x.shape[2:]]
        (top, bottom), (left, right) = ((total // 2, total - total // 2) for total in more)
        padded = F.pad(x, (left, right, top, bottom), value=-torch.inf)
        x = F.max_pool2d(padded, 3, 2)
        before = padded[:, :, top : padded.shape[2] - bottom, left : padded.shape[3] - right]
        assert torch.equal(pool(before), x)
    assert tf_cnn((3, *shape), 10)(torch.zeros(2, 3, *shape)).shape == (2, 10)


@pytest.mark.parametrize("build", [mcmahan_cnn, tf_cnn, simple_cnn, simple_cnn_wide, vgg9, resnet9, resnet18])
def test_logits_are_the_head_of_the_features(build):
    model = Model(build((3, 32, 32), 7))
    params, x = model.params(), torch.rand(2, 3, 32, 32)
    logits = model(params, x)
    assert logits.shape == (2, 7)
    torch.testing.assert_close(model.head(params, model.encode(params, x)), logits)


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (mcmahan_cnn, (1, 3, 3)),
        (simple_cnn, (1, 8, 8)),
        (simple_cnn_wide, (1, 15, 20)),
        (tf_cnn, (3, 4, 4)),
        (vgg9, (3, 7, 7)),
        (resnet9, (3, 28, 28)),
    ],
)
def test_too_small_images_are_refused(build, shape):
    with pytest.raises(ConfigError, match=rf"^model={build.__name__}: needs images of at least"):
        build(shape, 10)


@pytest.mark.parametrize(
    "build", [mcmahan_cnn, simple_cnn, simple_cnn_wide, tf_cnn, vgg9, kws_cnn, resnet9, resnet18, resnet50]
)
def test_models_of_images_refuse_tokens(build):
    with pytest.raises(ConfigError, match=rf"^model={build.__name__}: needs images, not .*\(12,\); model=lstm"):
        build((12,), 10)


@pytest.mark.parametrize(
    ("build", "key", "value"),
    [(mcmahan_cnn, "hidden", 0), (mcmahan_cnn, "hidden", -5), (resnet9, "dropout", 7.0), (resnet9, "dropout", 1.0)],
)
def test_sizes_and_shares_that_cannot_be_are_refused(build, key, value):
    with pytest.raises(ConfigError, match=rf"model\.{key}={value}: must be"):
        build((3, 32, 32), 10, **{key: value})


@pytest.mark.parametrize(
    ("build", "deviations", "biases"),
    [(mcmahan_cnn, [0.1] * 4, [0.1] * 4), (tf_cnn, [0.05, 0.05, 0.04, 0.04, 1 / 192], [0, 0.1, 0.1, 0.1, 0])],
)
def test_tensorflows_initial_weights(build, deviations, biases):
    """A normal distribution cut at two deviations is 0.8796 of one wide."""
    torch.manual_seed(0)
    params = Model(build((3, 24, 24), 10, initialisation="tensorflow")).params()
    weights = [value for name, value in params.items() if name.endswith("weight")]
    assert [value.unique().tolist() for name, value in params.items() if name.endswith("bias")] == [
        pytest.approx([bias]) for bias in biases
    ]
    for weight, deviation in zip(weights, deviations, strict=True):
        assert 1.8 * deviation < weight.abs().max() <= 2 * deviation
        assert weight.std().item() == pytest.approx(0.8796 * deviation, rel=0.05)
        assert abs(weight.mean()) < 0.05 * deviation


@pytest.mark.parametrize("build", [mcmahan_cnn, tf_cnn])
def test_initial_weights_are_pytorchs_unless_asked_and_others_are_refused(build):
    torch.manual_seed(0)
    bound = build((3, 24, 24), 10).encoder[0].weight.abs().max().item()
    assert bound == pytest.approx(75**-0.5, rel=0.01)  # uniform, to one over the root of the inputs
    with pytest.raises(ConfigError, match=r"model\.initialisation=keras: must be pytorch"):
        build((3, 24, 24), 10, initialisation="keras")


def test_local_response_is_tensorflows():
    x = torch.rand(1, 12, 1, 1)
    y = LocalResponse()(x)[0, :, 0, 0]
    flat = x[0, :, 0, 0]
    for channel in (0, 5, 11):
        near = flat[max(0, channel - 4) : channel + 5]
        torch.testing.assert_close(y[channel], flat[channel] / (1 + 0.001 / 9 * near.square().sum()) ** 0.75)


def ordinary():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())


def test_pure_batch_norm_trains_and_evaluates_as_pytorchs():
    theirs, ours = ordinary(), purify(ordinary())
    x = torch.rand(5, 2, 8, 8)
    for _ in range(2):
        expected = theirs(x)
        with training(None, torch.tensor(1)) as now:
            torch.testing.assert_close(ours(x), expected)
        for name, value in now.statistics.items():
            ours.get_buffer(name).copy_(value)
    torch.testing.assert_close(ours[1].running_mean, theirs[1].running_mean)
    torch.testing.assert_close(ours[1].running_var, theirs[1].running_var)
    theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x))


def test_a_single_value_of_a_channel_has_no_variance():
    norm = purify(nn.Sequential(nn.BatchNorm1d(2)))
    with training(None, torch.tensor(1)) as now:
        y = norm(torch.tensor([[3.0, -5.0]]))
    assert y.tolist() == [[0, 0]]
    assert now.statistics["0.running_mean"].tolist() == pytest.approx([0.3, -0.5])
    assert now.statistics["0.running_var"].tolist() == pytest.approx([0.9, 0.9])


def test_padding_counts_for_nothing_in_batch_norm():
    ours = purify(ordinary())
    x = torch.rand(5, 2, 8, 8)
    with training(None, torch.tensor(1)) as alone:
        expected = ours(x[:3])
    with training(torch.tensor([1.0, 1, 1, 0, 0]), torch.tensor(1)) as padded:
        torch.testing.assert_close(ours(x)[:3], expected)
    for name in alone.statistics:
        torch.testing.assert_close(padded.statistics[name], alone.statistics[name])


def test_pure_dropout_keeps_its_share_and_follows_its_key():
    net = purify(nn.Sequential(nn.Dropout(0.25), nn.Dropout2d(0.5)))
    x = torch.ones(50, 20, 4, 4)
    with training(None, torch.tensor(3)):
        first = net[0](x)
        channels = net[1](x)
    with training(None, torch.tensor(3)):
        again = net[0](x)
    with training(None, torch.tensor(4)):
        other = net[0](x)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert abs((first == 0).double().mean() - 0.25) < 0.02
    torch.testing.assert_close(first.max(), torch.tensor(1 / 0.75))
    whole = channels.flatten(2)
    assert ((whole == 0).all(2) | (whole == 2).all(2)).all()
    assert torch.equal(net(x), x)  # outside training: nothing is dropped
    with training(None, torch.tensor(3)):
        assert torch.equal(purify(nn.Dropout(1.0))(x), torch.zeros_like(x))


class Twice(nn.Module):
    """Uses one dropout, or one batch normalisation, twice."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return torch.cat([self.layer(x), self.layer(x + 1 - x)], 1)


def test_a_dropout_used_twice_has_other_noise_each_time_and_the_same_in_the_next_call():
    model = Model(Classifier(Twice(nn.Dropout(0.5)), nn.Linear(2000, 2)))
    params, x = model.params(), torch.ones(4, 1000)
    with training(None, torch.tensor(3)):
        found, again = model.encode(params, x), model.encode(params, x)
    first, second = (found != 0).chunk(2, 1)
    assert 0.45 < float((first == second).double().mean()) < 0.55 and torch.equal(found, again)


def test_max_pooling_takes_pictures_without_channels():
    x = torch.randn(3, 6, 6)
    net = purify(nn.Sequential(nn.MaxPool2d(2)))
    with training(None, torch.tensor(0), alone=True):
        assert torch.equal(net(x), F.max_pool2d(x, 2))


def test_padded_batches_of_other_rows_than_examples_are_refused_in_one_line():
    net = purify(nn.Sequential(nn.BatchNorm1d(2)))
    with training(torch.tensor([1.0, 1.0, 0.0]), torch.tensor(0)):
        assert net(torch.randn(3, 2)).shape == (3, 2)
        with pytest.raises(ConfigError, match=r"hardware.engine=vectorized: pads batches, and 0 normalises other rows"):
            net(torch.randn(12, 2))


def test_a_gradient_of_a_directional_derivative_through_batch_norm():
    """A loss may contain one (torch.func.jvp). PyTorch's own batch normalisation gives a wrong gradient of it."""
    torch.manual_seed(0)
    x, model = torch.randn(6, 4).double(), Model(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double())
    params = {name: leaf + 0.1 * torch.randn_like(leaf) for name, leaf in model.params().items()}
    along = torch.randn_like(x)

    def by_hand(x):
        normal = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
        return F.linear(normal * params["0.weight"] + params["0.bias"], params["1.weight"], params["1.bias"])

    def ours(x):
        with training(None, torch.tensor(0)):
            return model(params, x)

    found = []
    for function in (by_hand, ours):
        leaf = x.clone().requires_grad_()
        _, derivative = jvp(lambda x, function=function: function(x).square().mean(), (leaf,), (along,))
        found.append(torch.autograd.grad(derivative, leaf)[0])
    torch.testing.assert_close(found[1], found[0])


def test_batch_norm_used_twice_keeps_statistics_of_both():
    torch.manual_seed(0)
    theirs, model = Twice(nn.BatchNorm1d(3)), Model(Classifier(Twice(nn.BatchNorm1d(3)), nn.Linear(6, 2)))
    x = torch.rand(5, 3)
    expected = theirs.train()(x)
    for _ in range(2):  # a second call begins anew
        with training(None, torch.tensor(0)) as now:
            torch.testing.assert_close(model.encode(model.params(), x), expected)
    for name, value in now.statistics.items():
        torch.testing.assert_close(value, theirs.get_buffer(name.removeprefix("encoder.")))


def test_what_a_net_s_own_train_keeps_in_evaluation_mode_stays_there():
    """As is usual in fine-tuning: batch normalisation frozen."""

    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[0].eval()
            return self

    torch.manual_seed(0)
    net = Frozen(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    theirs, x = copy.deepcopy(net).train(), torch.rand(5, 3)
    expected = theirs(x)
    with training(None, torch.tensor(0)) as now:
        torch.testing.assert_close(purify(net)(x), expected)
    assert {*now.statistics} == {"1.running_mean", "1.running_var"}


def test_weights_and_settings_that_have_no_effect_here_are_refused():
    hooked = nn.Linear(3, 3)
    hooked.weight.register_hook(lambda grad: grad * 0)
    with pytest.raises(TypeError, match=r"^0\.weight: hooks of weights are not called here"):
        purify(nn.Sequential(hooked))
    with pytest.raises(TypeError, match=r"^0\.weight: complex numbers are not supported; keep"):
        purify(nn.Sequential(nn.Linear(3, 3, dtype=torch.complex64)))
    for setting in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}):
        with pytest.raises(TypeError, match=f"0: Embedding must be without {next(iter(setting))}"):
            purify(nn.Sequential(nn.Embedding(5, 3, **setting)))


class Cosine(nn.Linear):
    def forward(self, x):
        return super().forward(F.normalize(x, dim=1))


@pytest.mark.parametrize(
    "head", [Cosine(3, 2), nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))], ids=["own", "normed"]
)
def test_a_head_that_is_not_plainly_linear_is_refused(head):
    with pytest.raises(TypeError, match=r"^head: \w+ must be an ordinary nn\.Linear"):
        Model(Classifier(nn.Flatten(), head))
    Model(nn.Sequential(nn.Flatten(), head))  # a net that is not split may end as it likes


def test_layers_without_a_pure_form_are_refused():
    with pytest.raises(TypeError, match="0: RNN"):
        purify(nn.Sequential(nn.RNN(3, 3)))
    with pytest.raises(TypeError, match="0: LazyLinear has no weights yet"):
        purify(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(TypeError, match="BatchNorm must be affine"):
        Model(Classifier(nn.BatchNorm2d(3, affine=False), nn.Linear(3, 2)))


@pytest.mark.parametrize(
    "layer",
    [
        nn.RReLU(),
        nn.FeatureAlphaDropout(0.5),
        nn.MultiheadAttention(4, 2, dropout=0.5),
        nn.InstanceNorm2d(3, track_running_stats=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_noisy_and_counting_layers_are_refused(layer):
    with pytest.raises(TypeError, match=f"0: {type(layer).__name__.rstrip('12d')}"):
        purify(nn.Sequential(layer))


class Louder(nn.BatchNorm1d):
    def forward(self, x):
        return 1.5 * super().forward(x)


class Scaled(nn.Dropout):
    def forward(self, x):
        return 1.5 * super().forward(x)


class Named(nn.BatchNorm1d):
    """Has nothing of its own that counts."""


@pytest.mark.parametrize("layer", [Louder(3), Scaled(0.5)], ids=lambda layer: type(layer).__name__)
def test_a_layer_whose_own_forward_would_be_lost_is_refused(layer):
    with pytest.raises(TypeError, match=f"0: {type(layer).__name__} has a forward of its own, which would be replaced"):
        purify(nn.Sequential(layer))
    assert isinstance(purify(nn.Sequential(Named(3)))[0], BatchNorm)


def test_layers_that_change_weights_in_training_are_refused():
    """The power iteration of spectral_norm goes on in training alone."""
    for normed in (nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm):
        with pytest.raises(TypeError, match=r"^0.*[sS]pectral_?[nN]orm has no pure form here"):
            purify(nn.Sequential(normed(nn.Linear(3, 3))))
    with pytest.raises(TypeError, match="0: ParametrizedBatchNorm1d must be without parametrizations"):
        purify(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.BatchNorm1d(3))))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_transformer_that_leaves_padding_out_trains_in_either_form():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    plain = nn.TransformerEncoder(layer, 2).double()
    x, padding = torch.randn(3, 5, 8).double(), torch.arange(5) >= torch.tensor([[5], [3], [2]])
    expected = plain.train()(x, src_key_padding_mask=padding)
    net = purify(plain).eval()
    weights = {name: value.detach() for name, value in net.named_parameters()}

    def outputs(params, x, padding):
        with training(None, torch.tensor(0)):
            return functional_call(net, params, (x,), {"src_key_padding_mask": padding})

    stacked = {name: torch.stack([value, value]) for name, value in weights.items()}
    for found in torch.vmap(outputs)(stacked, torch.stack([x, x]), torch.stack([padding, padding])):
        torch.testing.assert_close(found[~padding], expected[~padding])


def test_attention_without_dropout_is_accepted():
    attention = nn.MultiheadAttention(4, 2)
    assert purify(nn.Sequential(attention))[0] is attention


def test_functional_dropout_is_off():
    class Noisy(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.5, self.training)

    model = Model(Classifier(Noisy(), nn.Linear(50, 2)))
    x = torch.rand(4, 50)
    assert torch.equal(model.encode(model.params(), x), x)


def test_a_layer_used_twice_is_replaced_at_both_places_and_stays_one():
    norm, dropout, block = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5))
    net = purify(nn.Sequential(norm, dropout, norm, dropout, block, block, nn.Dropout(0.5)))
    assert isinstance(net[3], Dropout)
    assert net[3] is net[1]
    assert net[2] is net[0]
    assert isinstance(net[5][0], Dropout)
    assert [net[1].stream, net[4][0].stream, net[6].stream] == [1, 2, 3]
    with training(None, torch.tensor(1)) as now:
        net(torch.rand(6, 4))
    assert now.statistics.keys() == {"0.running_mean", "0.running_var"}


def test_params_that_are_not_the_model_s_own_are_refused():
    """PyTorch would take what is missing from the net: its first weights, silently. The encoder needs no head."""
    model = Model(Classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), nn.Linear(3, 2)))
    params, x = model.params(), torch.ones(2, 1, 4, 4)
    body = {name: leaf for name, leaf in params.items() if not name.startswith("head.")}
    assert model.encode(body, x).equal(model.encode(params, x))
    with pytest.raises(ValueError, match=r"all of them and no others: they lack head\.bias, head\.weight"):
        model(body, x)
    with pytest.raises(ValueError, match=r"they lack encoder\.1\.weight"):
        model.encode({name: leaf for name, leaf in params.items() if name != "encoder.1.weight"}, x)
    for call in (model, model.encode):
        with pytest.raises(ValueError, match="they have besides second/head"):
            call({**params, "second/head": x}, x)
