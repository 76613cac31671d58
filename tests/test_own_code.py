"""What a user's own classes and functions give wrongly is told by name, in one line, and nothing of the run is lost."""

import json
import sys
from types import ModuleType

import pandas as pd
import pytest
import torch
from options import words_of
from program import FEW, metrics, only_folder, result, run

MODULE = """
from dataclasses import dataclass
from functools import partialmethod
from typing import Annotated
import numpy as np
import pandas as pd
import torch
from torch import nn
from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg, Stage
from fedexp.config.bounds import AtLeast
from fedexp.models import Classifier
from fedexp.server_optimizer.momentum import Momentum
from fedexp.server_optimizer.sgd import Sgd


def net(outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))

def wide(shape, classes, hidden, initialisation): return net(classes + 3)
def narrow(shape, classes, hidden, initialisation): return net(2)
def other_input(shape, classes, hidden, initialisation): return nn.Linear(3, classes)
def frozen(shape, classes, hidden, initialisation): return net(classes).requires_grad_(False)
class Pair(nn.Linear):
    def forward(self, x): return super().forward(x.flatten(1)), x
def pair(shape, classes, hidden, initialisation): return Pair(64, classes)
def long_head(shape, classes, hidden, initialisation): return Classifier(nn.Flatten(), net(classes))
def cumulative(shape, classes, hidden, initialisation):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, momentum=None), nn.Linear(64, classes))
class Masked(nn.Flatten):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.arange(64) % 3 > 0)
        self.register_buffer("added", torch.tensor([0.0, -torch.inf]))
    def forward(self, x): return super().forward(x) * self.mask + self.added[0]
def masked(shape, classes, hidden, initialisation): return Classifier(Masked(), nn.Linear(64, classes))
def insists(shape, classes, hidden, initialisation): assert classes == 3, "three classes"

def round_measure(done): return {"round": 77}
def accuracy_measure(done): return {"test_accuracy": 0.5}
def bytes_measure(done): return {"bytes_total": 1}
def text_measure(done): return {"mine": "high"}
def vector_measure(done): return {"mine": torch.ones(3)}
def drift_measure(done):
    for name, leaf in done.after["params"].items(): leaf -= done.before["params"][name]
    return {"mine": 1.0}
def no_argument_measure(): return {"mine": 1.0}
def half_measure(done): return {"mine": np.float32(0.5), "whole": np.float64(2.0), "right": torch.tensor(True)}

@dataclass(frozen=True, kw_only=True)
class Metrics(FedAvg):
    def metrics(self, state, ctx): return {"test_accuracy": 0.99}

@dataclass(frozen=True, kw_only=True)
class Shrinks(FedAvg):
    def metrics(self, state, ctx):
        for leaf in state["params"].values(): leaf.mul_(0.9)
        return {"mine": 1.0}

@dataclass(frozen=True, kw_only=True)
class HidesStart(FedAvg):
    start: float = 0.1

@dataclass(frozen=True, kw_only=True)
class HidesName(FedAvg):
    name: str = "x"

@dataclass(frozen=True, kw_only=True)
class Tensors(FedAvg):
    def metrics(self, state, ctx): return {"mine": torch.tensor(3.0)}

@dataclass(frozen=True, kw_only=True)
class Summary(FedAvg):
    def summary(self, state, ctx): return {"status": "great", "mine": np.arange(2), "kind": Summary}
    def artifacts(self, state, ctx):
        table = pd.DataFrame({"a": [1]})
        return {"metrics": table, "a/b": table, "good": table, "list": [1, 2], 3: "text"}

@dataclass(frozen=True, kw_only=True)
class Misspelt(FedAvg):
    def agregate(self, state, ids, uploads, ctx, gen): return state
    def losses(self, params): return 0.0
    def loss(self, model, params, batch, client):
        return super().loss(model, params, batch, client) + self.losses(params)

@dataclass(frozen=True, kw_only=True)
class MisspeltSwitch(FedAvg):
    need_head = True
    own_weight = True

@dataclass(frozen=True, kw_only=True)
class CountsClasses(FedAvg):
    own_weights = True
    def combine(self, state, ids, uploads, ctx):
        return tree.mean(uploads["update"], torch.full((len(ids),), float(ctx.model.classes)))

@dataclass(frozen=True, kw_only=True)
class Typeless(FedAvg):
    pull = 0.1

@dataclass(frozen=True, kw_only=True)
class Ending(FedAvg):
    def metrics(self, state, ctx): return {"last": float(state["round"] == ctx.rounds)}

@dataclass(frozen=True, kw_only=True)
class Counted(FedAvg):
    def init(self, ctx, params): return {**super().init(ctx, params), "count": torch.zeros(ctx.clients)}
    def select(self, state, ctx, gen):
        ids = super().select(state, ctx, gen)
        state["count"][ids] += 1
        return ids

@dataclass(frozen=True, kw_only=True)
class OfNet(FedAvg):
    def loss(self, model, params, batch, client): return batch.cross_entropy(model.net(batch.x))

@dataclass(frozen=True, kw_only=True)
class Pulled(FedAvg):
    pull: Annotated[float, AtLeast(0)] = 0.1

@dataclass(frozen=True, kw_only=True)
class NoHead(FedAvg):
    def upload(self, params, client):
        update = super().upload(params, client)["update"]
        return {"update": {name: leaf for name, leaf in update.items() if not name.startswith("head")}}

@dataclass(frozen=True, kw_only=True)
class NoNumber(FedAvg):
    def loss(self, model, params, batch, client): return super().loss(model, params, batch, client) * float("nan")

@dataclass(frozen=True, kw_only=True)
class Twin(FedAvg):
    def losses(self, params): return 0.0
class OfTwin:
    def loss(self, params): return self.of.losses(params)

@dataclass(frozen=True)
class MisspeltPart(Sgd):
    def stepp(self, params, update, memory, lr): return params, memory

@dataclass(frozen=True, kw_only=True)
class NoSummary(FedAvg):
    def summary(self, state, ctx): pass

@dataclass(frozen=True, kw_only=True)
class NoArtifacts(FedAvg):
    def artifacts(self, state, ctx): pass

@dataclass(frozen=True, kw_only=True)
class NoState(FedAvg):
    def init(self, ctx, params): return params

@dataclass(frozen=True, kw_only=True)
class NoLogits(FedAvg):
    def predict(self, state, model, x): return model(state["params"], x)[:, :3]

@dataclass(frozen=True, kw_only=True)
class Unknown(FedAvg):
    hidden: "Elsewhere" = 3

@dataclass(frozen=True, kw_only=True)
class Unsavable(FedAvg):
    def init(self, ctx, params): return {**super().init(ctx, params), "seen": {"mean": np.float64(0.5)}}

@dataclass(frozen=True, kw_only=True)
class UnsavableLater(FedAvg):
    def aggregate(self, state, ids, uploads, ctx, gen):
        return {**super().aggregate(state, ids, uploads, ctx, gen), "seen": [np.zeros(2)]}

@dataclass(frozen=True, kw_only=True)
class Taken(FedAvg):
    def init(self, ctx, params): return {**super().init(ctx, params), "clock": 0, "memory": torch.zeros(3)}

@dataclass(frozen=True, kw_only=True)
class TwoModels(FedAvg):
    def download(self, state, ids, ctx):
        model = super().download(state, ids, ctx)["model"]
        return {"model": {name: torch.stack([leaf, leaf], 1) for name, leaf in model.items()}}
    def start(self, download, memory, found): return {name: leaf[0] for name, leaf in download["model"].items()}

@dataclass(frozen=True, kw_only=True)
class Nothing(FedAvg):
    def trains(self, model): return []

@dataclass(frozen=True, kw_only=True)
class Ahead(FedAvg):
    server_optimizer: Sgd = Momentum()

@dataclass(frozen=True, kw_only=True)
class More(FedAvg):
    def remember(self, params, client): return {"count": torch.ones(())}

@dataclass(frozen=True, kw_only=True)
class Halves(FedAvg):
    def memory(self, ctx, params): return {"count": torch.zeros((), dtype=torch.int64)}
    def remember(self, params, client): return {"count": client.memory["count"] + 0.5}

@dataclass(frozen=True, kw_only=True)
class Wide(FedAvg):
    def memory(self, ctx, params): return {"count": torch.zeros((), dtype=torch.uint8)}
    def remember(self, params, client): return {"count": client.memory["count"].long() + 300}

@dataclass(frozen=True, kw_only=True)
class Ragged(FedAvg):
    def upload(self, params, client): return {**super().upload(params, client), "own": torch.zeros(int(client.size))}

@dataclass(frozen=True, kw_only=True)
class NoPersonal(FedAvg):
    def personal(self, download, memory, found): pass

@dataclass(frozen=True, kw_only=True)
class NoCenter(FedAvg):
    def center(self, state, ids, ctx): pass

@dataclass(frozen=True, kw_only=True)
class OneCenter(FedAvg):
    def center(self, state, ids, ctx): return state["params"]

@dataclass(frozen=True, kw_only=True)
class NoFinal(FedAvg):
    def final(self, state): pass

@dataclass(frozen=True, kw_only=True)
class OtherFinal(FedAvg):
    def final(self, state): return {name: leaf + 1.0 for name, leaf in state["params"].items()}

@dataclass(frozen=True, kw_only=True)
class LaterFinal(OtherFinal):
    def stages(self, ctx): return [Stage("first", FedAvg(), ctx, rounds=1), Stage("second", self, ctx)]

@dataclass(frozen=True, kw_only=True)
class Surveys(FedAvg):
    def inspect(self, model, download, memory, examples): return {"counts": examples.label_counts}
    def download(self, state, ids, ctx):
        return {**super().download(state, ids, ctx), "mean": self.survey(state, ids, {}, ctx)["counts"]}

@dataclass(frozen=True, kw_only=True)
class UnfitFinal(FedAvg):
    def init(self, ctx, params): return {**super().init(ctx, params), "scale": torch.ones(())}
    def predict(self, state, model, x): return state["scale"] * super().predict(state, model, x)

@dataclass(frozen=True, kw_only=True)
class Models(FedAvg):
    def upload(self, params, client): return {"model": {**params}}
    def aggregate(self, state, ids, uploads, ctx, gen):
        return {**state, "params": {name: leaf.mean(0) for name, leaf in uploads["model"].items()}}
    def starts(self, state, ids, uploads, ctx): return {}

@dataclass(frozen=True, kw_only=True)
class Median(FedAvg):
    def combine(self, state, ids, uploads, ctx): return median(uploads["update"])
def median(update): return {name: leaf.median(0).values for name, leaf in update.items()}

@dataclass(frozen=True, kw_only=True)
class MedianOfOwn(FedAvg):
    def aggregate(self, state, ids, uploads, ctx, gen): return stepped(self, state, uploads["update"], ids, ctx)
def stepped(algorithm, state, update, ids, ctx): return algorithm.step(state, median(update), len(ids), ctx)

@dataclass(frozen=True, kw_only=True)
class Half(FedAvg):
    def step(self, state, update, cohort, ctx):
        return {**state, "params": {name: leaf + update[name] / 2 for name, leaf in state["params"].items()}}

@dataclass(frozen=True, kw_only=True)
class Distilled(FedAvg):
    def aggregate(self, state, ids, uploads, ctx, gen):
        params = {name: leaf.clone().requires_grad_() for name, leaf in state["params"].items()}
        optimizer = torch.optim.SGD(params.values(), lr=0.1)
        for name, leaf in params.items(): leaf.grad = -uploads["update"][name].mean(0)
        optimizer.step()
        return {**state, "params": {name: leaf.detach() for name, leaf in params.items()}}

@dataclass(frozen=True, kw_only=True)
class Timely(FedAvg):
    def answers(self, state, ids, *others): return torch.ones(len(ids), dtype=torch.bool), 1.0

@dataclass(frozen=True, kw_only=True)
class MedianAndState(Median):
    def aggregate(self, *arguments): return {**super().aggregate(*arguments), "seen": torch.ones(())}

@dataclass(frozen=True, kw_only=True)
class Tabled(FedAvg):
    def aggregate(self, state, ids, uploads, ctx, gen):
        pd.DataFrame({"client": ids.tolist()}).groupby("client").size()
        return {**state, "params": {n: leaf + uploads["update"][n].mean(0) for n, leaf in state["params"].items()}}

def plainly(function):
    def wrapper(*arguments): return function(*arguments)
    return wrapper

class Server:
    def __init__(self, algorithm): self.algorithm = algorithm
    def go(self, state, update, ids, ctx): return self.algorithm.step(state, median(update), len(ids), ctx)

@dataclass(frozen=True, kw_only=True)
class Decorated(FedAvg):
    @plainly
    def aggregate(self, state, ids, uploads, ctx, gen):
        return self.step(state, median(uploads["update"]), len(ids), ctx)

@dataclass(frozen=True, kw_only=True)
class Delegates(FedAvg):
    def aggregate(self, state, ids, uploads, ctx, gen): return Server(self).go(state, uploads["update"], ids, ctx)

@dataclass(frozen=True, kw_only=True)
class Partial(FedAvg):
    def flagged(self, state, ids, uploads, ctx, gen, flag): return stepped(self, state, uploads["update"], ids, ctx)
    aggregate = partialmethod(flagged, flag=True)

@dataclass(frozen=True, kw_only=True)
class First(FedAvg):
    def select(self, state, ctx, gen): return torch.arange(ctx.cohort)

@dataclass(frozen=True, kw_only=True)
class Last(First):
    def select(self, state, ctx, gen): return super().select(state, ctx, gen).flip(0)
    def aggregate(self, state, ids, uploads, ctx, gen):
        if state["round"] == 0: return state
        return super().aggregate(state, ids, uploads, ctx, gen)

@dataclass(frozen=True, kw_only=True)
class SelectsOfTensors(FedAvg):
    def select(self, state, ctx, gen): return torch.arange(2 * ctx.cohort).view(2, -1).select(0, 1)
"""


@pytest.fixture(autouse=True)
def own_code(monkeypatch):
    module = ModuleType("own_code")
    monkeypatch.setitem(sys.modules, "own_code", module)
    exec(compile(MODULE, "own_code.py", "exec"), vars(module))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wide", "wide: must give logits of shape [2, 10] for 2 examples; it gave [2, 13]"),
        ("narrow", "narrow: must give logits of shape [2, 10] for 2 examples; it gave [2, 2]"),
        ("pair", "pair: must give logits of shape [2, 10] for 2 examples; it gave tuple"),
        ("other_input", "other_input: cannot take examples of shape [2, 1, 8, 8] (RuntimeError: "),
        ("frozen", "frozen: has no weights to train"),
        ("long_head", "TypeError: head must be one nn.Linear, not Sequential; other layers go into the encoder"),
        ("cumulative", "cumulative: 1: BatchNorm must be affine, with running statistics and a momentum"),
        ("insists", "cannot be built from its keys (AssertionError: three classes, own_code.py:"),
    ],
)
def test_a_model_that_does_not_fit_the_data(monkeypatch, capfd, tmp_path, name, said):
    assert run(monkeypatch, tmp_path, *FEW, "model.name=mine", f"model._target_=own_code.{name}", "rounds=1") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert said in line
    assert not list(tmp_path.glob("*/metrics.csv"))


@pytest.mark.parametrize("algorithm", ["fedavg", "ifca", "fedbuff", "fedcat", "fedconcat", "scaffold"])
def test_a_model_with_a_mask_trains_with_any_algorithm(monkeypatch, tmp_path, algorithm):
    """Truth values and infinities have no difference, from which updates are made."""
    words = [*words_of(algorithm), "model.name=mine", "model._target_=own_code.masked", "rounds=3"]
    assert run(monkeypatch, tmp_path, *words) == 0
    params = torch.load(only_folder(tmp_path) / "model.pt")
    for name, entry in (("mask", torch.arange(64) % 3 > 0), ("added", torch.tensor([0.0, -torch.inf]))):
        found = [leaf for path, leaf in params.items() if path.endswith(f"encoder.{name}")]
        assert found and all((leaf == entry).all() for leaf in found)  # one, or one for each cluster


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("round_measure", "measures.mine=round_measure: gives round, a column that metrics.csv has already"),
        (
            "accuracy_measure",
            "measures.mine=accuracy_measure: gives test_accuracy, a column that metrics.csv has already",
        ),
        ("bytes_measure", "bytes_total: is a column of metrics.csv already"),
        ("drift_measure", "measures.mine=drift_measure: must not change what it is given in place"),
        ("no_argument_measure", "measures.mine=own_code.no_argument_measure: must take one argument, a fedexp.round.R"),
        (
            "text_measure",
            "measures.mine=text_measure: must give a dict of numbers by name, for metrics.csv; mine is not a number",
        ),
        (
            "vector_measure",
            "measures.mine=vector_measure: must give a dict of numbers by name, for metrics.csv; mine is not a number",
        ),
    ],
)
def test_a_measure_that_gives_no_numbers_or_columns_of_others(monkeypatch, capfd, tmp_path, name, said):
    assert run(monkeypatch, tmp_path, *FEW, f"+measures.mine=own_code.{name}", "rounds=1") == 2
    assert said in capfd.readouterr().err


def test_numbers_of_numpy_and_tensors_are_plain_numbers(monkeypatch, tmp_path):
    words = [*FEW, "+measures.mine=own_code.half_measure"]
    assert run(monkeypatch, tmp_path, *words, "rounds=1") == 0
    assert run(monkeypatch, tmp_path, *words, "rounds=2") == 0  # from the checkpoint, which could hold them
    table = metrics(tmp_path)
    assert table[["mine", "whole", "right"]].values.tolist() == [[0.5, 2.0, 1.0]] * 2


def own(name, *words):
    return [*FEW, "algorithm=own", f"algorithm._target_=own_code.{name}", *words]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TwoModels", "starts: must return the models from which the updates are taken (by default download's "),
        ("Nothing", "trains: must name at least one of the entries that start returns"),
        ("NoState", 'init: must return the server\'s memory, a dict with the global model as "params"'),
        ("NoLogits", "predict: must return logits [60, 10] for 60 examples; it gave float32 [60, 3]"),
        ("Shrinks", "metrics: must not change the State in place, which others read after it; work on a copy (params."),
        ("HidesStart", "algorithm.start=0.1: HidesStart has a field of this name, which is that of a hook or of the"),
        ("HidesName", "algorithm.name=x: HidesName has a field of this name, which is that of a hook or of the run"),
        ("NoSummary", "summary: must return a dict, not None (is a return missing?)"),
        ("NoCenter", "center: must return a model for each client: None (is a return missing?)"),
        ("OneCenter", "center: must return a model for each client: encoder.0.weight is ["),
        ("NoFinal", "final: must return a dict of tensors by name, not None (is a return missing?)"),
        ("OtherFinal", "final: must return a model with which alone, "),
        ("UnfitFinal", "predict gives the logits of the whole State; it ends in KeyError: 'scale'"),
        ("NoArtifacts", "artifacts: must return a dict, not None (is a return missing?)"),
        ("Unknown", "own_code.Unknown: has a parameter whose type cannot be found (name 'Elsewhere' is not defined)"),
    ],
)
@pytest.mark.parametrize("engine", ["workers", "vectorized"])
def test_hooks_that_do_not_fit_one_another(monkeypatch, capfd, tmp_path, name, said, engine):
    assert run(monkeypatch, tmp_path, *own(name, "rounds=1", f"hardware.engine={engine}")) == 2
    assert said in capfd.readouterr().err
    for told in tmp_path.glob("*/result.json"):  # of those that began
        assert json.loads(told.read_text())["status"] == "failed"
        assert (told.parent / "error.txt").read_text().startswith("ConfigError: ")


def test_a_personal_model_that_is_none(monkeypatch, capfd, tmp_path):
    assert run(monkeypatch, tmp_path, *own("NoPersonal", "rounds=1", "evaluate.clients=all")) == 2
    assert "personal: must return a dict of tensors by name, not None (is a ret" in capfd.readouterr().err


def test_final_is_checked_in_each_stage(monkeypatch, capfd, tmp_path):
    assert run(monkeypatch, tmp_path, *own("LaterFinal", "rounds=3")) == 2
    assert "final: must return a model with which alone, " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "part", "said"),
    [
        ("Surveys", "privacy=dp_fedavg", "privacy=DpFedAvg: does not protect clients' answers to a survey, which Surv"),
        ("Models", "compression=top_k", 'compression=TopK: has no effect on Models, whose upload sends no "update"'),
        (
            "Models",
            "server_optimizer=adam",
            "server_optimizer=adam: has no effect on Models: nothing in its aggregate ",
        ),
        (
            "Models",
            "server_optimizer.lr=0.5",
            "server_optimizer.lr=0.5: has no effect on Models: nothing in its aggreg",
        ),
        (
            "Models",
            "selection.merge=equal",
            "selection.merge=equal: has no effect on Models: nothing in its aggregate ",
        ),
        (
            "Models",
            "selection=clusamp selection.merge=examples",
            'selection=CluSamp: compares clients by their updates, and upload sends no "',
        ),
        ("Half", "server_optimizer=momentum", "server_optimizer=momentum: has no effect on Half: nothing in its step "),
        ("Median", "selection.merge=equal", "selection.merge=equal: has no effect on Median: nothing in its combine "),
        ("First", "selection=poisson", "selection=poisson: has no effect on First: nothing in its select leads to "),
        ("Distilled", "server_optimizer=adam", "server_optimizer=adam: has no effect on Distilled: nothing in its agg"),
        (
            "Tabled",
            "server_optimizer=adam",
            "server_optimizer=adam: has no effect on Tabled: nothing in its aggregate ",
        ),
        ("Timely", "system=devices system.deadline=1", "system.deadline=1: has no effect on Timely: nothing in its an"),
        (
            "MedianAndState",
            "selection.merge=equal",
            "effect on MedianAndState: nothing in its aggregate and combine le",
        ),
        ("SelectsOfTensors", "selection=poisson", "selection=poisson: has no effect on SelectsOfTensors: nothing in "),
    ],
)
def test_a_part_without_effect_is_refused(monkeypatch, capfd, tmp_path, name, part, said):
    """Otherwise two runs with different parts, and folders of their own, would have the same numbers."""
    assert run(monkeypatch, tmp_path / "with", *own(name, *part.split(), "rounds=1")) == 2
    assert said in capfd.readouterr().err
    assert run(monkeypatch, tmp_path / "without", *own(name, "rounds=1")) == 0


@pytest.mark.parametrize("name", ["Median", "MedianOfOwn", "Decorated", "Delegates", "Partial", "Last"])
def test_a_server_optimizer_may_be_reached_from_elsewhere_and_later(monkeypatch, tmp_path, name):
    """Median inherits the step, Last takes none in its first round, and the others reach it by other code."""
    for part in ("sgd", "adam"):
        assert run(monkeypatch, tmp_path / part, *own(name, f"server_optimizer={part}", "rounds=2")) == 0
    losses = [metrics(tmp_path / part)["test_loss"].iloc[-1] for part in ("sgd", "adam")]
    assert losses[0] != losses[1]


def test_a_part_that_is_a_class_s_default_alone_is_told(monkeypatch, capfd, tmp_path):
    """The config chooses parts: without this line such a run would silently be another algorithm's."""
    told = "nesterov=False) for its default server_optimizer, and this run has Sgd(lr=1.0): parts are chosen"
    assert run(monkeypatch, tmp_path, *own("Ahead", "rounds=1")) == 0
    assert told in capfd.readouterr().out
    assert run(monkeypatch, tmp_path, *own("Ahead", "rounds=1", "server_optimizer=momentum")) == 0
    assert told not in capfd.readouterr().out
    assert run(monkeypatch, tmp_path, "algorithm=fedbuff", "selection.merge=examples", "rounds=1") == 0
    assert "for its default" not in "".join(capfd.readouterr()), "its option chooses the part, and its keys hold"


def test_a_misspelt_hook_is_told(monkeypatch, capfd, tmp_path):
    words = ["rounds=1", "server_optimizer=own", "server_optimizer._target_=own_code.MisspeltPart"]
    assert run(monkeypatch, tmp_path, *own("Misspelt", *words)) == 0
    said = [line for line in capfd.readouterr().out.splitlines() if "is no hook" in line]
    assert [line.partition("Misspelt")[1] + line.partition("Misspelt")[2] for line in said] == [
        "Misspelt.agregate is no hook, and nothing calls it: did you mean aggregate?",
        "MisspeltPart.stepp is no hook, and nothing calls it: did you mean step?",
    ]


def test_a_misspelt_switch_is_told(monkeypatch, capfd, tmp_path):
    assert run(monkeypatch, tmp_path, *own("MisspeltSwitch", "rounds=1")) == 0
    said = [line for line in capfd.readouterr().out.splitlines() if "is no hook" in line]
    assert [line.partition("Switch.")[2] for line in said] == [
        "need_head is no hook, and nothing calls it: did you mean needs_head?",
        "own_weight is no hook, and nothing calls it: did you mean own_weights?",
    ]


def test_names_that_a_module_answers_to_without_having_them(monkeypatch, tmp_path):
    """torch.classes has every attribute that it is asked for."""
    assert run(monkeypatch, tmp_path, *own("CountsClasses", "rounds=1")) == 0


def test_a_field_without_a_type_is_told(monkeypatch, capfd, tmp_path):
    assert run(monkeypatch, tmp_path, *own("Typeless", "+algorithm.pull=0.5")) == 2
    assert "; Typeless gives pull no type: write pull: float = ..." in capfd.readouterr().err


def test_more_rounds_of_what_depends_on_their_number_are_told(monkeypatch, capfd, tmp_path):
    told = "the code of Ending reads the number of rounds, which was 2 when this run was saved and is now 3"
    for rounds, warned in ((2, False), (2, False), (3, True)):
        assert run(monkeypatch, tmp_path, *own("Ending", f"rounds={rounds}")) == 0
        assert (told in capfd.readouterr().out) == warned
    assert metrics(tmp_path)["last"].tolist() == [0, 1, 1]


def test_a_state_that_select_changes_in_place_is_refused(monkeypatch, capfd, tmp_path):
    """The round begins again with the same State if it is interrupted."""
    assert run(monkeypatch, tmp_path, *own("Counted", "rounds=1")) == 2
    assert "select: must not change the State in place" in capfd.readouterr().err


@pytest.mark.parametrize("engine", ["workers", "vectorized"])
def test_a_loss_of_the_net_s_own_weights_is_refused(monkeypatch, capfd, tmp_path, engine):
    assert run(monkeypatch, tmp_path, *own("OfNet", "rounds=1", f"hardware.engine={engine}")) == 2
    assert "loss: must return a tensor that depends on the weights in params; this one" in capfd.readouterr().err


def test_a_loss_that_is_no_number_is_told_with_its_round(monkeypatch, capfd, tmp_path):
    assert run(monkeypatch, tmp_path, *own("NoNumber", "rounds=3")) == 0
    said = capfd.readouterr().out
    assert "the loss of round 1 is not a finite number, and the run has ended there" in said
    assert "no better than chance" not in said


def test_help_lists_the_keys_of_a_class_of_one_s_own(monkeypatch, capfd, tmp_path):
    assert run(monkeypatch, tmp_path, "algorithm=own", "algorithm._target_=own_code.Pulled", "--help") == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines() if line.startswith("+algorithm.")]
    assert lines == [["+algorithm.pull=0.1", "at", "least", "0"]]


def test_an_update_that_lacks_entries_is_told_by_its_hook(monkeypatch, capfd, tmp_path):
    assert run(monkeypatch, tmp_path, *own("NoHead", "rounds=1")) == 2
    said = 'upload: must return as "update" changes of all trained entries that `shared` gives, in their names, shapes'
    assert said in capfd.readouterr().err


def test_an_error_on_import_is_told_with_its_place(monkeypatch, capfd, tmp_path):
    lines = ["from dataclasses import dataclass", "from fedexp.algorithms.fedavg import FedAvg", "", "@dataclass",
             "class Mine(FedAvg): pass"]  # fmt: skip
    (tmp_path / "not_frozen.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    words = ["algorithm=own", "algorithm._target_=not_frozen.Mine"]
    assert run(monkeypatch, tmp_path / "outputs", *FEW, *words) == 2
    said = "from a frozen one, not_frozen.py:4; decorate it with @dataclass(frozen=True, kw_only=True))"
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("words", [["algorithm=fedprox", "algorithm._target_=own_code.Twin"],
                                   ["partition=iid", "partition._target_=own_code.wide"],
                                   ["selection=full", "selection._target_=own_code.Twin"]])  # fmt: skip
def test_a_class_of_one_s_own_does_not_stand_under_another_name(monkeypatch, capfd, tmp_path, words):
    option = words[0]
    assert run(monkeypatch, tmp_path, *FEW, *words, "rounds=1") == 2
    group = option.partition("=")[0]
    said = f"is not the class of {option}, under whose name the run would stand; choose {group}=own, or give {group}"
    assert said in capfd.readouterr().err


def test_what_another_class_calls_is_no_misspelt_hook(monkeypatch, capfd, tmp_path):
    assert run(monkeypatch, tmp_path, *own("Twin", "rounds=1")) == 0
    assert "is no hook" not in capfd.readouterr().out


def test_an_algorithm_s_metrics(monkeypatch, capfd, tmp_path):
    assert run(monkeypatch, tmp_path / "tensors", *own("Tensors", "rounds=1")) == 0
    assert metrics(tmp_path / "tensors")["mine"].tolist() == [3.0]
    assert run(monkeypatch, tmp_path / "taken", *own("Metrics", "rounds=1")) == 2
    assert "algorithm=Metrics: gives test_accuracy, a column that metrics.csv has" in capfd.readouterr().err


def test_an_algorithm_s_summary_and_artifacts_replace_nothing(monkeypatch, capfd, tmp_path):
    assert run(monkeypatch, tmp_path, *own("Summary", "rounds=2")) == 0
    said = capfd.readouterr()
    assert "an algorithm's summary cannot replace these entries of result.json: status" in said.out + said.err
    assert "left out: artifacts named metrics, a/b" in said.out + said.err
    assert "left out: artifacts that are neither data frames nor figures: list, 3" in said.out + said.err
    found = result(tmp_path)
    assert (found["status"], found["mine"]) == ("finished", [0, 1]) and "Summary" in found["kind"]
    assert len(metrics(tmp_path)) == 2
    assert pd.read_csv(only_folder(tmp_path) / "good.csv")["a"].tolist() == [1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Unsavable", "own_code.Unsavable: keeps seen.mean, a float64, in its State"),
        ("Taken", "algorithm=Taken: init gives the State clock, memory, which rounds write themselves; use other name"),
        ("UnsavableLater", "own_code.UnsavableLater: keeps seen.0, a ndarray, in its State"),
        ("More", "remember: must return what memory(ctx, params) does: own.count is float32 [], and in memory missing"),
        (
            "Halves",
            "remember: must return what memory(ctx, params) does: own.count is float32 [], and in memory int64 []",
        ),
        ("Wide", "remember: must return what memory(ctx, params) does: own.count is int64 [], and in memory uint8 []"),
        ("Ragged", "upload or remember: must return"),
    ],
)
def test_what_cannot_be_kept_is_refused_within_the_first_round(monkeypatch, capfd, tmp_path, name, said):
    assert run(monkeypatch, tmp_path, *own(name, "rounds=5")) == 2
    assert said in capfd.readouterr().err
    assert json.loads((only_folder(tmp_path) / "result.json").read_text())["rounds"] <= 1
