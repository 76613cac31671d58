"""conf/paper/fedconcat.yaml: what it sets for which data set, partition, algorithm; and that one can override it."""

import composing
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from worlds import make_context, make_world, run_stages

from fedexp.algorithms.fedconcat import FedConcat
from fedexp.algorithms.fedsoft import FedSoft
from fedexp.algorithms.fesem import FeSEM
from fedexp.algorithms.ifca import Ifca
from fedexp.algorithms.label_clusters import LabelClusters
from fedexp.building import build_algorithm, build_model
from fedexp.config.checks import check
from fedexp.config.options import CONF
from fedexp.config.schema import section
from fedexp.errors import ConfigError


def composed(*words, paper="fedconcat"):
    config = composing.composed(*([f"paper={paper}"] if paper else []), *words)
    check(config)
    OmegaConf.resolve(config)
    return config


def test_defaults_are_section_5_1():
    config = composed()
    assert (config.paper, config.dataset.name, config.model.name) == ("fedconcat", "cifar10", "simple_cnn")
    assert (config.clients, config.clients_per_round, config.rounds) == (40, 40, 50)
    local = config.local
    assert (local.epochs, local.batch_size, local.lr, local.momentum, local.weight_decay) == (10, 64, 0.01, 0.9, 1e-5)
    transform = config.dataset.transform
    assert (transform.mean, transform.crop, transform.pad, transform.pad_mode, transform.flip) == (
        [], 32, 4, "reflect", True,
    )  # fmt: skip


@pytest.mark.parametrize(("dataset", "rounds"), [("cifar10", 231), ("svhn", 231), ("fmnist", 204)])
@pytest.mark.parametrize("algorithm", ["fedconcat", "fedconcat_id", "fedconcat_fedsoft"])
def test_rounds_of_both_stages(algorithm, dataset, rounds):
    config = composed(f"dataset={dataset}", f"algorithm={algorithm}")
    assert (config.rounds, config.algorithm.encoder_rounds) == (rounds, 31)
    assert config.algorithm.clustering.clusters == 5


@pytest.mark.parametrize(
    ("algorithm", "dataset", "shape", "entries", "received", "as_fedavg_rounds"),
    [
        ("fedconcat", "cifar10", (3, 32, 32), 62_006, 1, 47.0),
        ("fedconcat", "svhn", (3, 32, 32), 62_006, 1, 47.0),
        ("fedconcat", "fmnist", (1, 28, 28), 44_426, 1, 49.8),
        ("fedconcat_fesem", "cifar10", (3, 32, 32), 62_006, 1, 47.0),
        ("fedconcat_ifca", "cifar10", (3, 32, 32), 62_006, 5, 109.0),
        ("fedconcat_fedsoft", "fmnist", (1, 28, 28), 44_426, 5, 111.8),
    ],
)
def test_bytes_of_the_whole_protocol(algorithm, dataset, shape, entries, received, as_fedavg_rounds):
    """Measured by the round and multiplied by the protocol's rounds, against parameter counts by hand: M up and
    `received` M down in an encoder round, K encoders once, then both ways a head of K 84 10 + 10 in place of the
    paper's K m (with which it is 47.2, 50.0, 109.2 and 112.0 of FedAvg's 2 M). Ten clients in place of 40.
    """
    rounds = composed(f"dataset={dataset}", f"algorithm={algorithm}").rounds
    config = composed(
        f"dataset={dataset}", f"algorithm={algorithm}", "algorithm.encoder_rounds=2", "local.epochs=1", "clients=10",
        "clients_per_round=10",
    )  # fmt: skip
    world = make_world([4] * 10, classes=10, shape=shape, dtype=torch.float32)
    local = section(config, "local")
    ctx = make_context(build_model(config, world), world, local, cohort=10, rounds=4, precision="float32")
    _, done = run_stages(build_algorithm(config), ctx)
    measured = [each.bytes_up + each.bytes_down for _, each in done]
    first, encoder, opening, classifier = measured
    total = first + 30 * encoder + opening + (rounds - 32) * classifier
    labels = 10 if algorithm == "fedconcat" else 0
    labels += 31 * {"fedconcat_ifca": 2, "fedconcat_fedsoft": 5}.get(algorithm, 0)  # a choice, shares, every round
    heads = 2 * (5 * 84 * 10 + 10) * (rounds - 31)
    assert total == 10 * 4 * ((1 + received) * entries * 31 + labels + 5 * (entries - 850) + heads)
    assert round(total / (10 * 4 * 2 * entries), 1) == as_fedavg_rounds


@pytest.mark.parametrize(
    ("dataset", "partition", "decay"),
    [("cifar100", "classes2", 0.001), ("cifar100", "classes3", 0.001), ("cifar100", "dir0.1", 0.002),
     ("cifar100", "dir0.5", 0.005), ("cifar100", "dir1.0", 0.005), ("tiny_imagenet", "classes2", 0.001),
     ("tiny_imagenet", "dir0.5", 0.002), ("tiny_imagenet", "dir1.0", 0.002), ("cifar100", "iid", 1e-5)],
)  # fmt: skip
def test_large_models(dataset, partition, decay):
    config = composed("model=resnet50", f"dataset={dataset}", f"partition={partition}", "algorithm=fedconcat_id")
    assert (config.clients, config.clients_per_round, config.rounds) == (200, 40, 980)
    own = config.algorithm
    assert (own.encoder_rounds, own.clustering.clusters, own.clustering.balanced) == (480, 2, True)
    assert (own.classifier_start, own.classifier_weight_decay) == ("heads", 1e-5)
    assert config.local.weight_decay == decay
    assert composed("model=resnet50", f"dataset={dataset}").rounds == 500


@pytest.mark.parametrize("dataset", ["cifar100", "tiny_imagenet"])
def test_large_models_have_no_weight_decay_for_a_partition_that_the_paper_lacks(dataset):
    """But for the user's own; and smaller models need none by partition."""
    words = [f"dataset={dataset}", "partition=dir0.5", "partition.alpha=0.3"]
    with pytest.raises(ConfigError, match=r"local\.weight_decay.*no value for dir0\.3.*dir0\.1"):
        composed("model=resnet50", *words)
    assert composed("model=resnet50", *words, "local.weight_decay=0.002").local.weight_decay == 0.002
    assert composed(*words).local.weight_decay == 1e-5


def test_constants_reach_only_who_has_the_key():
    assert composed("algorithm=moon").algorithm.mu == 0.01
    assert "mu" not in composed("algorithm=fedavg", "dataset=fmnist").algorithm
    dirichlet = composed("partition=dir0.1").partition
    assert (dirichlet.construction, dirichlet.published_draw) == ("class_split", True)
    assert "construction" not in composed("partition=classes2").partition
    assert composed("algorithm=centralized").rounds == 200


VARIANTS = {  # what clusters, and how, where it is not by the defaults
    "fedconcat": (LabelClusters, {"labels": "counted", "balanced": False}),
    "fedconcat_balanced": (LabelClusters, {"labels": "counted", "balanced": True}),
    "fedconcat_dp": (LabelClusters, {"labels": "noisy", "balanced": False}),
    "fedconcat_fedsoft": (FedSoft, {}),
    "fedconcat_fesem": (FeSEM, {}),
    "fedconcat_ib": (LabelClusters, {"labels": "bias", "balanced": False}),
    "fedconcat_id": (LabelClusters, {"labels": "random_inputs", "balanced": False}),
    "fedconcat_id_balanced": (LabelClusters, {"labels": "random_inputs", "balanced": True}),
    "fedconcat_ifca": (Ifca, {}),
}


@pytest.mark.parametrize("paper", [None, "fedconcat"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_what_its_name_says(name, paper):
    algorithm = build_algorithm(composed(f"algorithm={name}", paper=paper))
    clusters, settings = VARIANTS[name]
    assert type(algorithm) is FedConcat
    assert algorithm.clustering == clusters(**settings)


def test_no_variant_is_left_out():
    assert VARIANTS.keys() == {path.stem for path in (CONF / "algorithm").glob("fedconcat*.yaml")}


@pytest.mark.parametrize("paper", [None, "fedconcat"])
@pytest.mark.parametrize(
    ("name", "constants"),
    [("fedconcat", {"encoder_rounds": 31, "classifier_steps": 3, "classifier_weight_decay": 1e-5,
                    "classifier_start": "random"}),
     ("label_clusters", {"clusters": 5, "labels": "counted", "balanced": False, "slack": 1.0, "epsilon": 5.0,
                         "random_inputs": 10_000, "bias_path": "effective"}),
     ("ifca", {"clusters": 5, "identical_start": False}), ("fedsoft", {"clusters": 5, "mu": 0.01, "interval": 2}),
     ("fesem", {"clusters": 5, "mu": 0.1}), ("moon", {"temperature": 0.5}), ("fedprox", {"mu": 0.01}),
     ("fedrs", {"scaling": "missing"})],
)  # fmt: skip
def test_constants(name, constants, paper):
    """By themselves and, on CIFAR-10, in the paper's protocol."""
    algorithm = build_algorithm(composed(f"algorithm={name}", paper=paper))
    assert {key: getattr(algorithm, key) for key in constants} == constants


@pytest.mark.parametrize(
    ("name", "key", "alone", "searched"), [("fedrs", "alpha", 0.5, 0.9), ("fedlc", "tau", 1.0, 0.01)]
)
@pytest.mark.parametrize("dataset", ["cifar10", "fmnist"])
def test_constants_that_were_searched(name, key, alone, searched, dataset):
    """The paper's lists are not legible: the best on Fashion-MNIST with two classes a client, in its protocol."""
    words = [f"algorithm={name}", f"dataset={dataset}"]
    assert [composed(*words, paper=paper).algorithm[key] for paper in (None, "fedconcat")] == [alone, searched]


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [("cifar10", True), ("cifar100", True), ("tiny_imagenet", True), ("svhn", False), ("fmnist", False),
     ("mnist", False)],
)  # fmt: skip
@pytest.mark.parametrize("name", ["fedconcat_id", "fedconcat_ifca"])
def test_the_head_sees_augmented_images_where_the_encoders_did(name, dataset, expected):
    """In the protocol; features once is the algorithm's own default, and what the command line says is done."""
    words = [f"algorithm={name}", f"dataset={dataset}"]
    config = composed(*words)
    assert build_algorithm(config).augmented is expected
    assert instantiate(config.dataset.transform).augments is expected
    assert build_algorithm(composed(*words, paper=None)).augmented is False
    assert build_algorithm(composed(*words, "algorithm.augmented=false")).augmented is False


def test_the_command_line_wins():
    config = composed(
        "algorithm=fedconcat_id", "rounds=7", "algorithm.encoder_rounds=3", "clients=20", "clients_per_round=10",
        "algorithm.clustering.clusters=elbow", "local.weight_decay=0", "dataset.transform.flip=false",
    )  # fmt: skip
    assert (config.rounds, config.algorithm.encoder_rounds, config.clients, config.clients_per_round) == (7, 3, 20, 10)
    assert (config.algorithm.clustering.clusters, config.local.weight_decay) == ("elbow", 0)
    assert config.dataset.transform.flip is False


def test_clustering_can_be_chosen_by_itself():
    words = ["algorithm=fedconcat", "algorithm@algorithm.clustering=fesem", "algorithm.clustering.mu=0.3"]
    config = composed(*words, paper=None)
    assert config.algorithm.clustering == {
        "name": "fesem", "_target_": "fedexp.algorithms.fesem.FeSEM", "clusters": 5, "mu": 0.3,
    }  # fmt: skip
    algorithm = build_algorithm(config)
    assert algorithm.clustering == FeSEM(clusters=5, mu=0.3)


@pytest.mark.parametrize(
    ("word", "message"),
    [("+algorithm.clustering.mu=1", r"algorithm\.clustering\.mu=1: no such key"),
     ("algorithm.clustering.epsilon=much", r"algorithm\.clustering\.epsilon=much"),
     ("+dataset.transform.sharpen=1", r"dataset\.transform\.sharpen=1: no such key")],
)  # fmt: skip
def test_keys_within_a_group_are_checked(word, message):
    with pytest.raises(ConfigError, match=message):
        composed("algorithm=fedconcat", word)
