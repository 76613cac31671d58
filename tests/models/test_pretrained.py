"""A pre-trained start: all below the head from a file, the head as it was; torchvision's weights; what does not fit."""

import pytest
import torch
from composing import composed
from program import SMALL, model, only_folder, result, run
from torch import nn
from torchvision import models

from fedexp.building import build_algorithm, build_context, build_dataset
from fedexp.config.checks import check
from fedexp.config.fingerprint import fingerprint
from fedexp.errors import ConfigError
from fedexp.models import Classifier, Model
from fedexp.models.pretrained import load
from fedexp.models.resnet import resnet9, resnet18
from fedexp.models.simple import simple_cnn


def fresh(seed, build=resnet9, classes=10, **settings):
    torch.manual_seed(seed)
    return build((3, 32, 32), classes, **settings)


def assert_started(net, given, before):
    """The encoder is `given`, statistics included, and the head is what it was."""
    for name, leaf in net.encoder.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(leaf, given[name]), name
    assert torch.equal(net.head.weight, before.head.weight) and torch.equal(net.head.bias, before.head.bias)


def moved(net):
    """The same with running statistics that are not those of a new model."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.fill_(0.25)
    return net


@pytest.mark.parametrize("form", ["classifier", "encoder", "model.pt"])
def test_all_but_the_head_is_that_of_the_file(tmp_path, form):
    """Also where it was trained on other classes; named as in the classifier, as in its encoder, as a run leaves it."""
    other = moved(fresh(1, classes=7))
    given = {name: leaf.clone() for name, leaf in other.encoder.state_dict().items()}
    held = {"classifier": other.state_dict(), "encoder": other.encoder.state_dict()}
    torch.save(held.get(form) or Model(other).params(), tmp_path / "weights.pt")
    net = fresh(2)
    load(net, str(tmp_path / "weights.pt"))
    assert_started(net, given, fresh(2))


def test_torchvision_s_file(tmp_path):
    """Its names are those of the encoder, its head is called fc."""
    torch.manual_seed(3)
    theirs = models.resnet18(num_classes=1000)
    torch.save(theirs.state_dict(), tmp_path / "resnet18.pth")
    net = fresh(2, resnet18, stem="imagenet")
    load(net, str(tmp_path / "resnet18.pth"))
    assert_started(net, theirs.state_dict(), fresh(2, resnet18, stem="imagenet"))
    x = torch.rand(2, 3, 64, 64)
    theirs.fc = net.head
    torch.testing.assert_close(net.eval()(x), theirs.eval()(x))
    with pytest.raises(ConfigError, match=r"has other shapes than this model: conv1\.weight \(\[64, 3, 7, 7\], here"):
        load(fresh(2, resnet18), str(tmp_path / "resnet18.pth"))


def test_torchvision_s_weights_by_name(tmp_path, monkeypatch):
    """From where torchvision keeps what it has downloaded."""
    name = models.get_weight("ResNet18_Weights.IMAGENET1K_V1").url.rsplit("/", 1)[1]
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    torch.manual_seed(4)
    theirs = models.resnet18().state_dict()
    torch.save(theirs, tmp_path / "checkpoints" / name)
    net = fresh(2, resnet18, stem="imagenet")
    load(net, "ResNet18_Weights.IMAGENET1K_V1")
    assert_started(net, theirs, fresh(2, resnet18, stem="imagenet"))
    with pytest.raises(
        ConfigError, match=r"model\.pretrained=ResNet18_Weights\.V7: torchvision has no weights of this name"
    ):
        load(net, "ResNet18_Weights.V7")


def without(entries, end):
    return {name: leaf for name, leaf in entries.items() if not name.endswith(end)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda held: without(held, "3.weight"), r"lacks 3\.weight of this model"),
        (
            lambda held: {"encoder.other.weight": torch.ones(2), **held},
            r"has entries that this model lacks: oth",
        ),
        (
            lambda held: {**held, "encoder.0.weight": torch.ones(6, 3, 3, 3)},
            r"other shapes than this model: 0\.weight",
        ),
        (lambda held: {"epoch": 3, **held}, r"must be a file with a state dict: tensors by name"),
        (lambda held: {**held, 1: torch.ones(2)}, r"must be a file with a state dict: tensors by name"),
        (
            lambda held: {**held, "encoder.0.weight": held["encoder.0.weight"].to_sparse()},
            r"not dense, real and finite: 0",
        ),
        (
            lambda held: {**held, "encoder.0.weight": held["encoder.0.weight"].cfloat()},
            r"not dense, real and finite: 0",
        ),
        (lambda held: {**held, "encoder.0.weight": held["encoder.0.weight"] / 0}, r"not dense, real and finite: 0"),
        (
            lambda held: {**held, "encoder.0.weight": held["encoder.0.weight"].double() * 1e300},
            r"not dense, real and fin",
        ),
        (lambda held: [1, 2], r"must be a file with a state dict: tensors by name"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, change, said):
    torch.save(change(fresh(1, simple_cnn).state_dict()), tmp_path / "weights.pt")
    net = fresh(2, simple_cnn)
    with pytest.raises(ConfigError, match=rf"model\.pretrained={tmp_path}/weights\.pt: .*{said}"):
        load(net, f"{tmp_path}/weights.pt")
    assert all(torch.equal(leaf, fresh(2, simple_cnn).state_dict()[name]) for name, leaf in net.state_dict().items())


@pytest.mark.parametrize("text", [None, b"no weights", b"a,b\n1,2\n", b"hello world"])
def test_a_file_that_cannot_be_read_is_said(tmp_path, text):
    if text:
        (tmp_path / "weights.pt").write_bytes(text)
    with pytest.raises(ConfigError, match=r"model\.pretrained=.*: cannot be read \(.*\); it must be a file"):
        load(fresh(2, simple_cnn), str(tmp_path / "weights.pt"))


def test_a_whole_model_is_not_loaded(tmp_path):
    """It would be a program to run, not weights."""
    torch.save(nn.Linear(2, 3), tmp_path / "whole.pt")
    with pytest.raises(ConfigError, match=r"whole model\); it must be a file with a state dict, or a name such as"):
        load(fresh(2, simple_cnn), str(tmp_path / "whole.pt"))


def test_a_model_without_a_head_is_refused():
    with pytest.raises(ConfigError, match=r"model\.pretrained=x: needs a model of an encoder and a head"):
        load(nn.Sequential(nn.Linear(2, 2)), "x")
    load_nothing = Classifier(nn.Flatten(), nn.Linear(4, 2))
    assert Model(load_nothing).pretrained is None


def context(*words):
    config = composed(*SMALL, *words)
    check(config)
    return config, build_context(config, build_dataset(config))


def test_a_run_starts_from_another_run_s_model(monkeypatch, tmp_path):
    """And begins better than from random weights: below the head it has been trained already."""
    words = ["rounds=1", "local.epochs=2", "clients=4", "partition=iid", "model.hidden=16", "local.lr=0.05"]
    assert run(monkeypatch, tmp_path / "first", *words, "rounds=3") == 0
    source = only_folder(tmp_path / "first") / "model.pt"
    config, ctx = context(*words, f"model.pretrained={source}")
    held, random = model(tmp_path / "first"), context(*words)[1].model.params()
    for name, leaf in ctx.model.params().items():
        assert torch.equal(leaf, random[name] if name.startswith("head.") else held[name]), name
    assert run(monkeypatch, tmp_path / "second", *words, f"model.pretrained={source}") == 0
    assert run(monkeypatch, tmp_path / "plain", *words) == 0
    started, plain = (result(tmp_path / name)["final_accuracy"] for name in ("second", "plain"))
    assert started > plain
    assert fingerprint(config) == result(tmp_path / "second")["fingerprint"] != fingerprint(composed(*SMALL, *words))


def test_a_file_s_place_is_its_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = [
        fingerprint(composed(*SMALL, f"model.pretrained={source}")) for source in ("a.pt", f"{tmp_path}/a.pt", "b.pt")
    ]
    assert names[0] == names[1] != names[2]
    assert fingerprint(composed(*SMALL, "model.pretrained=null")) == fingerprint(composed(*SMALL))


@pytest.mark.parametrize(
    ("algorithm", "works"),
    [("ifca", False), ("ifca algorithm.identical_start=true", True), ("fedsoft", False), ("fesem", True)],
)
def test_clusters_that_start_from_shuffled_weights_refuse_it(tmp_path, algorithm, works):
    _, plain = context()
    torch.save(plain.model.params(), tmp_path / "weights.pt")
    config, ctx = context(f"model.pretrained={tmp_path}/weights.pt", *f"algorithm={algorithm}".split())
    if works:
        build_algorithm(config).check(ctx)
    else:
        with pytest.raises(ConfigError, match=r"model\.pretrained=.*: the clusters' first models are shuffled copies"):
            build_algorithm(config).check(ctx)
