"""The papers' protocols: what each data set and algorithm gets, what the command line says against them."""

import pytest
from composing import composed

from fedexp.building import build_algorithm
from fedexp.config.checks import check
from fedexp.config.fingerprint import fingerprint

DATASETS = {"fedcat": ["mnist", "cifar10", "cifar100_coarse", "femnist"], "cadis": ["mnist", "cifar10", "cifar100"]}
ALGORITHMS = {
    "fedcat": ["fedavg", "fedprox", "scaffold", "fedgen", "clusamp", "fedcat", "fedcat_gc", "fedcat_dc"],
    "cadis": ["fedavg", "fedprox", "fedfa", "feddyn", "cadis", "centralized"],
}
MODELS = {
    "fedcat": dict.fromkeys(["mnist", "femnist"], "mcmahan_cnn")
    | dict.fromkeys(["cifar10", "cifar100_coarse"], "simple_cnn"),
    "cadis": {"mnist": "mcmahan_cnn", "cifar10": "resnet9", "cifar100": "resnet9", "image_folder": "resnet18"},
}


@pytest.mark.parametrize("paper", ["fedcat", "cadis"])
def test_every_cell_composes_and_its_constants_reach_their_algorithm_alone(paper):
    for dataset in DATASETS[paper]:
        for algorithm in ALGORITHMS[paper]:
            config = composed(f"paper={paper}", f"dataset={dataset}", f"algorithm={algorithm}")
            check(config)  # raises for a key that the algorithm does not have
            assert config.paper == paper and config.model.name == MODELS[paper][dataset]


def test_fedcat_s_run_level_keys():
    config = composed("paper=fedcat", "dataset=mnist")
    assert (config.clients, config.clients_per_round, config.rounds, config.evaluate.every) == (100, 10, 1000, 10)
    local = config.local
    assert (local.epochs, local.batch_size, local.lr, local.momentum) == (5, 50, 0.01, 0.9)
    assert config.partition.name == "dir0.1" and config.partition.construction == "client_prior"
    femnist = composed("paper=fedcat", "dataset=femnist", "partition=natural")
    assert (femnist.clients, femnist.clients_per_round, femnist.dataset.writers) == (180, 18, 180)


@pytest.mark.parametrize("dataset", DATASETS["fedcat"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedgen", "fedprox", "scaffold"])
def test_fedcat_code_differs_from_fedcat_in_momentum_the_dirichlet_split_and_scaffold_s_path(dataset, algorithm):
    partition = "natural" if dataset == "femnist" else "dir0.5"
    words = [f"dataset={dataset}", f"algorithm={algorithm}", f"partition={partition}"]
    own, paper = composed("paper=fedcat_code", *words), composed("paper=fedcat", *words)
    check(own)
    assert (own.local.momentum, own.partition.get("construction")) == (
        0.5, None if dataset == "femnist" else "class_split",
    )  # fmt: skip
    own.local.momentum, own.paper = 0.9, "fedcat"
    if algorithm == "scaffold":
        assert (own.algorithm.path, paper.algorithm.path) == ("published", "effective")
        own.algorithm.path = "effective"
    if dataset != "femnist":
        own.partition.construction = "client_prior"
    assert own == paper


@pytest.mark.parametrize("dataset", DATASETS["fedcat"])
def test_fedgen_s_terms_do_not_fade_in_fedcat_s_protocol(dataset):
    algorithm = build_algorithm(composed("paper=fedcat", f"dataset={dataset}", "algorithm=fedgen"))
    assert algorithm.decay == 1 and algorithm.alpha > 0 and algorithm.beta > 0


def test_cadis_s_run_level_keys():
    config = composed("paper=cadis", "dataset=mnist")
    assert (config.clients, config.clients_per_round, config.rounds) == (100, 10, 500)
    local = config.local
    assert (local.epochs, local.batch_size, local.lr, local.momentum, local.drop_last) == (5, 8, 0.001, 0, False)
    assert config.partition.name == "mc" and list(config.targets) == [0.8, 0.9]
    assert config.artifacts_every == 50
    assert config.measures.received == "fedexp.measure.clients.received_accuracy"  # figure 8b
    assert composed("paper=cadis", "dataset=cifar10").rounds == 1000
    assert composed("paper=cadis", "dataset=mnist", "algorithm=cadis").local.drop_last


@pytest.mark.parametrize(
    "paper, dataset, algorithm, key, value",
    [
        ("fedcat", "mnist", "fedprox", "mu", 0.1), ("fedcat", "cifar10", "fedprox", "mu", 0.01),
        ("fedcat", "cifar100_coarse", "fedprox", "mu", 0.001), ("fedcat", "femnist", "fedprox", "mu", 0.1),
        ("fedcat", "cifar100_coarse", "fedgen", "server_lr", 1e-4), ("fedcat", "cifar10", "fedgen", "alpha", 0.2),
        ("cadis", "mnist", "cadis", "epsilon", 0.975), ("cadis", "cifar10", "cadis", "epsilon", 0.95),
        ("cadis", "cifar100", "cadis", "epsilon", 0.9), ("cadis", "cifar10", "fedprox", "mu", 0.01),
        ("cadis", "mnist", "feddyn", "alpha", 0.5), ("cadis", "mnist", "fedfa", "alpha", 1.0),
    ],
)  # fmt: skip
def test_constants_by_data_set(paper, dataset, algorithm, key, value):
    config = composed(f"paper={paper}", f"dataset={dataset}", f"algorithm={algorithm}")
    assert config.algorithm[key] == value


@pytest.mark.parametrize(
    "option, expected",
    [
        ("mc", {"ratios": [3, 3, 2, 1, 1], "mean": 290, "deviation": 86, "smallest": 86, "largest": 498}),
        ("bc", {"share": 0.6, "mean": 192, "deviation": 0, "labels_per_client": None}),
        ("uc", {"share": 0.6, "mean": 190.5, "deviation": 16.4, "labels_per_client": None}),
        ("pa", {"labels_per_client": 2, "log_mean": 4.66, "log_deviation": 1.63}),
    ],
)
def test_cluster_skew_has_the_sizes_of_the_published_files(option, expected):
    own = composed("paper=cadis", "dataset=mnist", f"partition={option}").partition
    assert {key: own[key] for key in expected} == expected
    assert composed("dataset=cifar10", "partition=pa").partition.log_mean == 3.95


def test_constants_that_cadis_leaves_to_its_code():
    own = composed("paper=cadis", "dataset=mnist", "algorithm=cadis").algorithm
    code = {
        "epsilon_growth": 1.0005, "epsilon_largest": 0.985, "gamma": 0.0067, "kernel": "centred", "closure": True,
    }  # fmt: skip
    paper = {
        "transitive": "draw", "cluster_size": "participants", "weights": "examples", "rescaling": "all",
        "distillation": 1.0,
    }  # fmt: skip
    assert {key: own[key] for key in code | paper} == code | paper


def test_normalisation_by_data_set():
    assert list(composed("paper=fedcat", "dataset=cifar10").dataset.transform.mean) == [0.5] * 3
    cadis = composed("paper=cadis", "dataset=cifar100").dataset.transform
    assert list(cadis.std) == [0.2023, 0.1994, 0.2010]
    assert list(composed("dataset=cifar100").dataset.transform.std) != list(cadis.std), "only with the paper"


def test_the_command_line_wins():
    config = composed(
        "paper=fedcat", "dataset=cifar10", "algorithm=fedprox", "algorithm.mu=1", "model=tf_cnn", "rounds=7",
        "local.lr=0.5", "partition=iid", "dataset.transform.mean=[0.1,0.2,0.3]",
    )  # fmt: skip
    assert (config.algorithm.mu, config.rounds, config.local.lr) == (1, 7, 0.5)
    assert (config.model.name, config.partition.name) == ("tf_cnn", "iid")
    assert list(config.dataset.transform.mean) == [0.1, 0.2, 0.3]
    check(config)


def test_the_same_run_spelt_out_is_the_same_run():
    short = composed("paper=cadis", "dataset=mnist", "algorithm=cadis")
    long = composed(
        "dataset=mnist", "algorithm=cadis", "partition=mc", "model=mcmahan_cnn", "clients=100", "clients_per_round=10",
        "rounds=500", "local.epochs=5", "local.batch_size=8", "local.lr=0.001", "local.momentum=0",
        "local.drop_last=true", "targets=[0.8,0.9]",
        "+measures.received=fedexp.measure.clients.received_accuracy",
    )  # fmt: skip
    assert fingerprint(short) == fingerprint(long)


def test_one_s_own_pictures_run_as_cadis_s_pill():
    config = composed("paper=cadis", "dataset=image_folder", "dataset.root=pictures", "partition=natural")
    check(config)
    assert (config.clients, config.clients_per_round, config.dataset.size) == (10, 3, 224)
    assert config.model.name == "resnet18"


def test_adam_over_the_union_has_the_batch_of_all_participants():
    config = composed("paper=cadis", "dataset=mnist", "algorithm=centralized", "clients_per_round=20")
    assert (config.local.optimizer, config.local.batch_size) == ("adam", 160)
