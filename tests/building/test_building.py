"""Settings that cannot work are refused by the name of their key and their value, before anything is begun."""

import re
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from composing import composed
from program import SMALL
from torch import nn

from fedexp.building import build_context, build_dataset, build_stages, warn_of_hardware
from fedexp.config.checks import check
from fedexp.data import Dataset, Transform
from fedexp.errors import ConfigError
from fedexp.experiment import check_rounds


def built(*words):
    """Check a run and build all of it, as the program does before the first round."""
    config = composed(*SMALL, *words)
    check(config)
    stages = build_stages(config, build_context(config, build_dataset(config)))
    check_rounds(stages, config.rounds)
    return stages


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["partition._target_=fedexp.partition.natural.natural"],
            ["partition.alpha=0.1", "no such key; dir, dir0.1, ", "have it\n"],
        ),
        (["algorithm=fedprox", "+algorithm.muu=1"], ["algorithm.muu=1", "did you mean mu?"]),
        (["algorithm=fedprox", "algorithm.mu=abc"], ["algorithm.mu=abc: must be a number"]),
        (["algorithm=fedprox", "algorithm.mu=-1"], ["algorithm.mu=-1", "at least 0"]),
        (["local.lr=-1"], ["local.lr=-1", "above 0"]),
        (["clients_per_round=100"], ["clients_per_round=100", "at most clients=20"]),
        (["partition=dir", "partition.alpha=0"], ["partition.alpha=0", "above 0"]),
        (["clients=5000"], ["clients=5000", "only 1437 training examples"]),
        (["++targets=[[0.8]]"], ["targets=", "[0.8]", "fraction in"]),
        (["targets=[1.5]"], ["targets=1.5", "fraction in"]),
        (
            ["partition=own", "partition._target_=fewer.two"],
            ["partition._target_=fewer.two", "must give the ids of each of the 20 clients; it gave those of 2"],
        ),
        (["partition.alpha='1'"], ["partition.alpha=1: is a text, and must be a number; leave out the quotes"]),
        (["selection._target_=1.5"], ["selection._target_=1.5", "must name a class or function"]),
        (["algorithm._target_=foo.Bar"], ["algorithm._target_=foo.Bar", "cannot be imported"]),
        (["dataset.test_fraction=2.0"], ["dataset.test_fraction=2.0", "(0, 1)"]),
        (["partition=natural"], ["partition=natural", "does not say which client"]),
        (["model.hidden=-5"], ["model.hidden=-5", "at least 1"]),
        (["model.hidden=0"], ["model.hidden=0", "at least 1"]),
        (["dataset=made", "dataset.shape=[28,28]"], ["dataset.shape=[28, 28]", "[channels, height, width]"]),
        (["dataset=made", "dataset.tokens=5"], ["dataset.shape=[1, 28, 28]", "must be [length], from 1"]),
        (["dataset=made", "dataset.tokens=0"], ["dataset.tokens=0", "at least 1"]),
        (["dataset=made", "dataset.shape=[5]", "dataset.tokens=40000"], ["dataset.tokens=40000", "at most 32768"]),
        (["dataset=made", "dataset.classes=0"], ["dataset.classes=0", "at least 1"]),
        (["dataset=made", "dataset.test=0"], ["dataset.test=0", "at least 1"]),
        (["+dataset.transform.pad=4"], ["dataset.transform.pad=4", "no effect without dataset.transform.crop"]),
        (["local.lr=inf"], ["local.lr=inf", "finite"]),
        (["local.weight_decay=inf"], ["local.weight_decay=inf", "finite"]),
        (["local.max_grad_norm=inf"], ["local.max_grad_norm=inf", "finite"]),
        (["partition=dir", "partition.alpha=inf"], ["partition.alpha=inf", "finite"]),
        (["partition=dir", "partition.quantity_alpha=inf"], ["partition.quantity_alpha=inf", "finite"]),
        (["partition=dir", "partition.tries=0"], ["partition.tries=0", "at least 1"]),
        (["partition=dir", "partition.tries=1000000000"], ["partition.tries=1000000000", "at most 10000"]),
        (["partition=bc", "partition.tries=1000000000"], ["partition.tries=1000000000", "at most 10000"]),
        (["partition.alpha=${nosuch}"], ["partition.alpha=${nosuch}", "key 'nosuch' not found"]),
        (
            ["algorithm=fedconcat_id", "algorithm.clustering.random_inputs=1000000000"],
            ["algorithm.clustering.random_inputs=1000000000", "1,000,000"],
        ),
        (["local.lr=${clients.x}"], ["local.lr=", "clients"]),
        (["local.lr=${oc.env:FEDEXP_NOSUCH}"], ["local.lr=${oc.env:FEDEXP_NOSUCH}", "not found"]),
        (["partition=dir", "partition.min_size=-1"], ["partition.min_size=-1", "at least 0"]),
        (["partition=pa", "partition.log_mean=inf"], ["partition.log_mean=inf", "finite"]),
        (["dataset=made", "dataset.shape=[1,3000000,3000000]"], ["dataset=made: cannot be built", "RuntimeError"]),
        (["partition=mc", "partition.smallest=0"], ["partition.smallest=0", "at least 1"]),
        (["dataset=femnist", "dataset.root=/nowhere", "dataset.writers=0"], ["dataset.writers=0", "at least 1"]),
        (["hardware.convolution=fast"], ["hardware.convolution=fast", "one of auto, direct"]),
        (["hardware.client_memory=disk"], ["hardware.client_memory=disk", "one of device, cpu"]),
        (["hardware.precision=half"], ["hardware.precision=half", "float32"]),
        (["dataset=mnist", "dataset.download=false", "dataset.root=/nowhere"], ["dataset.root=/nowhere", "by hand"]),
        (["+local.epoch=1"], ["local.epoch=1: no such key; did you mean epochs?"]),
        (["++local.epoch=1"], ["local.epoch=1: no such key; did you mean epochs?"]),
        (["+rouns=3"], ["rouns=3: no such key; did you mean rounds?"]),
        (["+foo.bar=1"], ["foo={'bar': 1}: no such key"]),
        (["+algoritm=fedprox"], ["algoritm=fedprox: no such key; did you mean algorithm?"]),
        (["+hardware.worker=1"], ["hardware.worker=1: no such key; did you mean workers?"]),
        (["+measures.mine=centralized"], ["measures.mine=centralized: cannot be imported"]),
        (
            ["measures.divergence=fedexp.measure.accuracy"],
            ["measures.divergence=fedexp.measure.accuracy: must name a funct"],
        ),
        (["+reference_round=3"], ["reference_round=3: no such key; did you mean reference_rounds?"]),
        (
            ["local.optimizer=adam", "local.momentum=0.9"],
            ["local.momentum=0.9: is that of sgd, and local.optimizer=adam has its own averages; use 0"],
        ),
        (["hardware.device='cuda:'"], ["hardware.device=cuda:: must be auto, cpu, cuda or cuda:N"]),
        (["server_optimizer=adam", "server_optimizer.beta1=1"], ["server_optimizer.beta1=1: must be in [0, 1)"]),
        (["compression=top_k", "compression.share=0"], ["compression.share=0: must be in (0, 1]"]),
        (["selection=full"], ["clients_per_round=4: selection=full takes all clients; use clients_per_round=20"]),
        (["tracking=wandb", "+tracking.projekt=x"], ["tracking.projekt=x: no such key; did you mean project?"]),
        (["+partition.alpa=1"], ["partition.alpa=1: no such key; did you mean alpha?"]),
        (["+dataset.transform.flipp=true"], ["dataset.transform.flipp=true: no such key; did you mean flip?"]),
        (["+model.source=mine"], ["model.source=mine: no such key; only a data set has one"]),
        (["algorithm=fedconcat", "rounds=31"], ["rounds=31", "must be above 31, after which the stage head begins"]),
        (["algorithm=fedconcat", "rounds=40", "algorithm.clustering=ifca"], ["algorithm@algorithm.clustering=ifca"]),
        (
            ["algorithm=fedconcat", "rounds=40", "algorithm.clustering.clusters=30"],
            ["algorithm.clustering.clusters=30"],
        ),
        (
            ["algorithm=scaffold", "privacy=dp_fedavg"],
            ["privacy=dp_fedavg: covers the mean of bounded updates alone, and Scaffold has hooks"],
        ),
        (["algorithm=ifca", "server_optimizer=adam"], ["server_optimizer=adam: remembers steps of one global model"]),
        (["algorithm=fedconcat_ib", "server_optimizer=fedfa"], ["server_optimizer=fedfa: remembers steps of one"]),
        (["algorithm=fedcat", "selection=power_of_choice"], ["selection=power_of_choice: FedCat draws devices"]),
        (
            ["algorithm=fedcat", "system=devices", "system.dropout=0.1"],
            ["system=devices: FedCat needs an answer from every client"],
        ),
        (
            ["dataset=digits", "partition=pa", "partition.holdout=0.2"],
            ["partition.holdout=0.2: this partition shares examples between clients, who train on what others"],
        ),
        (
            ["partition=iid", "partition.quantity_skew=1e308"],
            ["partition.quantity_skew=1e+308: must be above 0"],
        ),
        (["partition=iid", "partition.quantity_alpha=1e308"], ["partition.quantity_alpha=1e+308: must be above 0 and"]),
        (["partition=iid", "partition.noise=1e308"], ["partition.noise=1e+308: must be at least 0, and at most 1e12"]),
        (
            ["algorithm=fedavg", "compression=majority_vote", "privacy=dp_fedavg"],
            ["compression=majority_vote: does not"],
        ),
    ],
    ids=lambda each: " ".join(each),
)
def test_what_cannot_work_is_refused(words, said, monkeypatch):
    fewer = ModuleType("fewer")
    fewer.two = lambda dataset, clients, seed: [torch.tensor([0]), torch.tensor([1])]
    monkeypatch.setitem(sys.modules, "fewer", fewer)
    with pytest.raises(ConfigError) as error:
        built(*words)
    assert all(part in f"{error.value}\n" for part in said), error.value
    assert "\n" not in str(error.value)


class Viewing(nn.Module):
    """LeNet's way from images to a row, which needs contiguous memory."""

    def __init__(self, classes):
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 3))
        self.linear = nn.Linear(32, classes)

    def forward(self, x):
        return self.linear(self.convolutions(x).view(-1, 32))


def test_a_model_that_trains_otherwise_than_in_pytorch_is_refused(monkeypatch, caplog):
    """It uses a layer in a way that misses its weights, or one whose weights no gradient reaches."""
    models = ModuleType("models_of_mine")
    models.listing = lambda shape, classes, **keys: Listing(classes, listed=True)
    models.leaving_out = lambda shape, classes, **keys: Listing(classes, listed=False)
    monkeypatch.setitem(sys.modules, "models_of_mine", models)
    target = "model._target_=models_of_mine.listing"
    with pytest.raises(ConfigError, match=f"^{re.escape(target)}: trains otherwise here than in an ordinary PyTorch"):
        built("model.name=mine", target)
    built("model.name=mine", "model._target_=models_of_mine.leaving_out", "local.weight_decay=0")
    assert not caplog.records
    built("model.name=mine", "model._target_=models_of_mine.leaving_out", "local.weight_decay=0.01")
    assert "model: no gradient of the loss reaches linear.bias; unless the algorithm uses them" in caplog.text


@pytest.mark.parametrize(
    ("kind", "engine", "said"),
    [
        ("signed", "workers", None),
        ("signed", "vectorized", r"^hardware\.engine=vectorized: cannot vectorize this model .*; use hardware.engine="),
        ("complex", "workers", r"^model\._target_=models_of_mine\.complex: 1\.c: complex numbers are not supported"),
        ("uncopied", "workers", None),
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_a_model_that_cannot_train_so_is_refused(monkeypatch, kind, engine, said):
    kinds = {"signed": Signed, "complex": Complex, "uncopied": lambda: nn.utils.weight_norm(nn.Linear(64, 64))}
    models = ModuleType("models_of_mine")
    for name, made in kinds.items():
        setattr(models, name, lambda shape, classes, made=made, **keys: nn.Sequential(
            nn.Flatten(), made(), nn.Linear(64, classes)
        ))  # fmt: skip
    monkeypatch.setitem(sys.modules, "models_of_mine", models)
    words = "model.name=mine", f"model._target_=models_of_mine.{kind}", f"hardware.engine={engine}"
    if said is None:
        built(*words)
    else:
        with pytest.raises(ConfigError, match=said):
            built(*words)


class Caching(nn.Module):
    """It keeps a tensor for each number of examples, of their type."""

    def __init__(self, classes, weights):
        super().__init__()
        self.linear, self.kept = nn.Linear(64, classes, bias=False), {}
        self.linear.weight = weights if isinstance(weights, nn.Parameter) else nn.Parameter(weights)

    def forward(self, x):
        return self.linear(x.flatten(1) * self.kept.setdefault(len(x), torch.ones(len(x), 64, dtype=x.dtype)))


@pytest.mark.parametrize("kind", ["tensor", "parameter"])
def test_nothing_of_the_comparison_is_left_in_the_run_s_model(monkeypatch, caplog, kind):
    """Though a constructor gives the same tensor, or the same weight, whenever it is called."""
    weights = torch.randn(10, 64)
    given = nn.Parameter(weights.clone())
    models = ModuleType("models_of_mine")
    models.tensor = lambda shape, classes, **keys: Caching(classes, weights)
    models.parameter = lambda shape, classes, **keys: Caching(classes, given)
    monkeypatch.setitem(sys.modules, "models_of_mine", models)
    (stage,) = built("model.name=mine", f"model._target_=models_of_mine.{kind}")
    model = stage.context.model
    kept = (weights if kind == "tensor" else given).detach().clone()
    assert torch.equal(model.own["linear.weight"], kept) and model.own["linear.weight"].dtype == torch.float32
    assert all(each.dtype == torch.float32 for each in model.net.kept.values())
    assert ("so that it cannot be tried out" in caplog.text) == (kind == "parameter")


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Signed(nn.Module):
    def forward(self, x):
        return Sign.apply(x)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.ones(64, dtype=torch.complex64))

    def forward(self, x):
        return (x * self.c).real


class Listing(nn.Module):
    """listed: its weight is used from a list, where nothing can take its place; otherwise its bias is not used."""

    def __init__(self, classes, listed):
        super().__init__()
        self.linear, self.listed = nn.Linear(64, classes), listed
        self.weights = [self.linear.weight]

    def forward(self, x):
        weight, bias = (self.weights[0], self.linear.bias) if self.listed else (self.linear.weight, None)
        return nn.functional.linear(x.flatten(1), weight, bias)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "viewing",
            r"lie in channels-last memory here, .* use \.reshape\(\) or \.flatten\(1\)",
        ),
        ("scripted", r"cannot be used \("),
    ],
)
def test_a_model_that_cannot_be_used_is_told_in_one_line(monkeypatch, kind, said):
    models = ModuleType("models_of_mine")
    models.viewing = lambda shape, classes, **keys: Viewing(classes)
    models.scripted = lambda shape, classes, **keys: torch.jit.script(
        nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    )
    monkeypatch.setitem(sys.modules, "models_of_mine", models)
    target = f"model._target_=models_of_mine.{kind}"
    with pytest.raises(ConfigError, match=f"^{re.escape(target)}: .*{said}") as error:
        built("model.name=mine", target)
    assert "\n" not in str(error.value)


def test_a_token_that_a_model_lacks_is_refused_wherever_it_is(monkeypatch):
    """Only the last training example has it, and no GPU's error can be caught."""
    texts = ModuleType("texts")
    x, y = torch.zeros(200, 6, dtype=torch.int16), torch.arange(200) % 5
    x[-1, 3] = 7
    texts.few = lambda transform: Dataset("few", x, y, x[:20], y[:20], 5, transform)
    monkeypatch.setitem(sys.modules, "texts", texts)
    words = ["~model.hidden", "dataset=own", "dataset._target_=texts.few", "model=lstm", "partition=iid"]
    with pytest.raises(ConfigError, match=r"lstm\.lstm: cannot take .* \[2, 6\] with tokens up to 7 \(IndexError"):
        built(*words)
    built(*words, "model.vocabulary=8")


def test_a_data_set_that_is_prepared_otherwise_than_its_keys_say_is_refused(monkeypatch):
    x, y = torch.zeros(200, 1, 8, 8, dtype=torch.uint8), torch.arange(200) % 5
    own = ModuleType("own_data")
    own.flipped = lambda transform: Dataset("own", x, y, x, y, 5, replace(transform, flip=True))
    monkeypatch.setitem(sys.modules, "own_data", own)
    words = ["dataset=own", "dataset._target_=own_data.flipped", "partition=iid"]
    with pytest.raises(ConfigError, match=r"dataset\._target_=own_data\.flipped: must return .* the transform that it"):
        built(*words)
    built(*words, "dataset.transform.flip=true")


def test_examples_of_one_feature_in_any_layout_are_summed_up():
    """A tensor whose last dimension is 1 may have strides that say nothing."""

    x, y = torch.randn(200, 1, 6).transpose(1, 2), torch.arange(200) % 5
    data = [Dataset("few", each, y, each[:20], y[:20], 5, Transform()) for each in (x, x.clone().contiguous(), -x)]
    assert data[0].checksum == data[1].checksum != data[2].checksum


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hardware.workers=auto", "hardware.engine=vectorized"], ""),
        (["hardware.workers=2"], ""),
        (["hardware.workers=2", "hardware.engine=vectorized"], "hardware.workers=2 has no effect: cohorts train vec"),
        (["hardware.clients_at_once=3", "hardware.engine=vectorized", "hardware.workers=auto"], ""),
        (["hardware.clients_at_once=3"], "hardware.clients_at_once=3 has no effect: cohorts train in workers"),
    ],
)
def test_a_setting_of_the_other_mechanism_is_named(caplog, words, said):
    config = composed(*SMALL, *words)
    warn_of_hardware(build_context(config, build_dataset(config)))
    assert said in caplog.text if said else not caplog.records
