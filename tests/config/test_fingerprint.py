"""What names a run: pinned names, what they hold, and what they leave out."""

import csv
import inspect
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import yaml
from composing import composed
from omegaconf import OmegaConf

from fedexp.config.constructors import GIVEN, GROUPS, PARTS, constructor
from fedexp.config.fingerprint import effective, fingerprint, relevant
from fedexp.config.options import CONF
from fedexp.config.schema import Evaluate
from fedexp.data import Transform
from fedexp.engine import Hardware, Local

HERE = Path(__file__).parent
PLAIN = (str, bool, int, float, list, tuple, dict, type(None))


def pinned(name):
    with (HERE / name).open(newline="") as file:
        return list(csv.DictReader(file))


def named(*words):
    return relevant(OmegaConf.to_container(composed(*words), resolve=True))


def constructors():
    """All whose arguments a fingerprint holds, by path."""
    yield from ((kind.__name__, kind, ()) for kind in (Local, Evaluate, Hardware, Transform))
    for group in (*GROUPS, *PARTS):
        for path in sorted((CONF / group).glob("*.yaml")):
            if target := yaml.safe_load(path.read_text()).get("_target_"):
                yield target, constructor(group, target), GIVEN.get(group, ())


def defaults():
    """(constructor, argument, default) of every argument that has one."""
    found = {}
    for target, made, given in constructors():
        for name, parameter in inspect.signature(made).parameters.items():
            if isinstance(parameter.default, PLAIN) and name not in given:
                found[target, name] = repr(parameter.default)
        if is_dataclass(made):
            found |= {
                (target, field.name): repr(field.default_factory())
                for field in fields(made) if callable(field.default_factory)
            }  # fmt: skip
    return found


@pytest.mark.parametrize("line", pinned("fingerprints.csv"), ids=lambda line: line["words"] or "nothing")
def test_a_run_keeps_its_name(line):
    """Another name would leave finished runs unfound, here and wherever fedexp is at work."""
    assert fingerprint(composed(*line["words"].split())) == line["fingerprint"]


def test_a_default_keeps_its_value():
    """A fingerprint leaves it out: with another value, another run would have this one's name. New ones are added."""
    held = {(line["constructor"], line["argument"]): line["default"] for line in pinned("defaults.csv")}
    now = defaults()
    assert {key: now.get(key) for key in held} == held
    assert now.keys() == held.keys(), "a new default is pinned in defaults.csv"


def test_what_is_at_its_default_is_no_part_of_a_name():
    assert named() == {
        "dataset": {"_target_": "fedexp.data.digits.digits", "transform": {"_target_": "fedexp.data.Transform"}},
        "partition": {"_target_": "fedexp.partition.dirichlet.dirichlet", "alpha": 0.1},
        "model": {"_target_": "fedexp.models.mcmahan.mcmahan_cnn"},
        "algorithm": {"_target_": "fedexp.algorithms.fedavg.FedAvg"},
        "clients": 20, "clients_per_round": 4, "seed": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "spelt"),
    [
        (["partition=dir0.1"], ["partition=dir", "partition.alpha=0.1"]),
        (["partition=dir", "partition.alpha=1"], ["partition=dir1.0"]),
        (["server_optimizer.lr=1"], ["server_optimizer=sgd"]),
        (["dataset=mnist", "dataset.transform.mean=[0]"], ["dataset=mnist", "dataset.transform.mean=[0.0]"]),
        (["partition.noise=1", "partition.quantity_skew=1"], ["partition.noise=1.0", "partition.quantity_skew=1.0"]),
        (["partition.holdout=0"], []), (["rounds=61"], []), (["hardware=cpu"], []), (["hardware.workers=1"], []),
        (["tracking=none"], []), (["output_root=/elsewhere"], []), (["checkpoint_seconds=1"], []),
        (["artifacts_every=3"], []), (["pictures=false"], []), (["selection=uniform"], []),
        (["compression=none"], []), (["privacy=none"], []), (["+measures.mine=null"], []),
        (["~measures.divergence"], ["measures.divergence=null"]),
        (["algorithm=fedprox", "algorithm.mu=0.01"], ["algorithm=fedprox", "~algorithm.mu"]),
        (["dataset=mnist", "dataset.root=a"], ["dataset=mnist", "dataset.root=b"]),
        (["dataset=cifar10_jpeg", "dataset.root=a"], ["dataset=cifar10_jpeg", "dataset.root=b"]),
        (["dataset=mnist", "dataset.download=false"], ["dataset=mnist"]),
        (["dataset=image_folder", "dataset.root=a"], ["dataset=image_folder", "dataset.root=./a"]),
    ],
    ids=str,
)  # fmt: skip
def test_one_run_has_one_name_however_it_is_spelt(words, spelt):
    assert fingerprint(composed(*words)) == fingerprint(composed(*spelt))


@pytest.mark.parametrize(
    "words",
    [
        ["seed=1"], ["local.lr=0.2"], ["algorithm=fedprox"], ["hardware.precision=bfloat16"], ["partition.holdout=0.1"],
        ["partition.seed=0"],
        ["hardware.convolution=direct"], ["selection=clusamp"], ["server_optimizer=momentum"], ["targets=[0.5]"],
        ["server_optimizer.lr=0.5"], ["compression=top_k"], ["evaluate.every=2"], ["evaluate.clients=all"],
        ["reference=centralized"], ["measures.divergence=null"], ["dataset=cifar10"],
        ["+measures.received=fedexp.measure.clients.received_accuracy"],
    ],
    ids=str,
)  # fmt: skip
def test_what_can_change_a_result_changes_the_name(words):
    assert fingerprint(composed(*words)) != fingerprint(composed())


@pytest.mark.parametrize("data", ["image_folder", "femnist", "shakespeare"])
def test_of_other_data_the_folder_is_the_name(data):
    """LEAF draws writers and speakers anew for each of its folders."""
    names = {fingerprint(composed(f"dataset={data}", f"dataset.root={root}")) for root in ("a", "b", "./a")}
    assert len(names) == 2


def test_a_copy_of_known_data_has_a_name_of_its_own():
    assert fingerprint(composed("dataset=cifar10_jpeg")) != fingerprint(composed("dataset=cifar10"))


def test_a_new_key_with_its_default_renames_nothing(tmp_path, monkeypatch):
    """A constructor before and after it has grown a key: the runs that do not set it keep their names."""
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "def net(shape, classes, width=8{more}):\n    pass\n"
    (tmp_path / "grown_before.py").write_text(text.format(more=""))
    (tmp_path / "grown_after.py").write_text(text.format(more=", depth: float = 2.0, sides: tuple = (1, 2)"))

    def hashed(module, *words):
        config = composed("model=own", f"model._target_={module}.net", *words)
        config.model._target_ = f"{module}.net"
        found = relevant(OmegaConf.to_container(config, resolve=True))
        return {**found, "model": {**found["model"], "_target_": "grown.net"}}

    before = hashed("grown_before")
    assert hashed("grown_after") == before
    assert hashed("grown_after", "+model.depth=2", "+model.sides=[1,2]") == before
    assert hashed("grown_after", "+model.depth=3") != before


def test_runs_are_compared_with_all_defaults_and_without_imports(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "strangers.py").write_text("def net(shape, classes, width=8):\n    pass\n")
    config = OmegaConf.to_container(composed(), resolve=True)
    every, given = effective(config)
    assert every["server_optimizer"] == {"_target_": "fedexp.server_optimizer.sgd.Sgd", "lr": 1.0}
    assert every["model"]["hidden"] == 512 and "hidden" not in given["model"]
    assert every["local"]["momentum"] == 0.0 and every["precision"] == "float32"
    config["model"] = {"_target_": "strangers.net"}
    assert effective(config)[0]["model"] == {"_target_": "strangers.net", "pretrained": None}
    assert "strangers" not in sys.modules
    config["algorithm"] = {"_target_": "fedexp.algorithms.of_another_version.Gone", "mu": 3}
    assert effective(config)[0]["algorithm"] == config["algorithm"]
