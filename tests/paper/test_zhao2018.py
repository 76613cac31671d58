"""The protocol of Zhao et al. (2018) as the command line composes it."""

import composing
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from fedexp.config.checks import check
from fedexp.config.fingerprint import readable
from fedexp.errors import ConfigError


def composed(*words):
    config = composing.composed("paper=zhao2018", *words)
    check(config)
    return OmegaConf.create(OmegaConf.to_container(config, resolve=True))


@pytest.mark.parametrize(
    ("words", "name", "batch", "large", "lr", "decay"),
    [
        (["dataset=mnist"], "mnist-shards1-mcmahan_cnn", 100, 1000, 0.01, 0.995),
        (["dataset=cifar10"], "cifar10-shards1-tf_cnn", 100, 1000, 0.1, 0.992),
        (["dataset=cifar10_jpeg"], "cifar10_JPEG_copy-shards1-tf_cnn", 100, 1000, 0.1, 0.992),
        (["dataset=speech_commands"], "speech_commands-shards1-kws_cnn", 50, 500, 0.05, 0.992),
    ],
)  # fmt: skip
def test_constants_of_each_data_set(words, name, batch, large, lr, decay):
    config = composed(*words)
    assert readable(config) == f"{name}-fedavg-seed0"
    assert (config.paper, config.clients, config.clients_per_round, config.rounds) == ("zhao2018", 10, 10, 500)
    local = config.local
    assert (local.batch_size, local.lr, local.lr_decay, local.epochs) == (batch, lr, decay, 1)
    assert (local.momentum, local.weight_decay) == (0, 0)
    assert composed(*words, "algorithm=centralized").local.batch_size == large
    shown = instantiate(config.dataset.transform)
    expected = (24, True, True) if "cifar10" in name else (None, False, False)
    assert (shown.crop, shown.flip, shown.standardise) == expected
    assert (shown.mean, shown.std) == ([], [])
    assert config.model.get("initialisation") == (None if "speech" in name else "tensorflow")


def test_data_sharing_runs_for_300_rounds_from_its_own_batch():
    config = composed("dataset=cifar10", "algorithm=data_sharing")
    assert config.rounds == 300
    assert config.algorithm.pretraining_batch_size == 100
    assert (config.algorithm.pretraining_target, config.algorithm.holdout) == (0.6, 0.2)


def test_the_warm_up_keeps_its_learning_rate_and_pre_training_decays_as_sgd_does():
    assert composed("dataset=cifar10", "algorithm=data_sharing").algorithm.pretraining_lr_decay == 1.0
    assert composed("dataset=cifar10", "algorithm=fedavg_pretrained").algorithm.pretraining_lr_decay is None


def test_a_data_set_that_the_paper_has_not_needs_its_own_constants():
    with pytest.raises(ConfigError, match=r"local\.lr=null: must be given: the paper gives it for its own"):
        composed("dataset=digits", "model=mcmahan_cnn")
    config = composed("dataset=digits", "model=mcmahan_cnn", "local.lr=0.05", "local.lr_decay=1")
    assert config.local.lr == 0.05


def test_a_data_set_that_the_paper_has_not_needs_a_model_of_its_own():
    pictures = ["dataset=image_folder", "dataset.root=x", "local.lr=0.05", "local.lr_decay=1"]
    with pytest.raises(ConfigError, match="Could not find 'model/zhao2018/image_folder'"):
        composed(*pictures)
    assert composed(*pictures, "model=mcmahan_cnn").model.name == "mcmahan_cnn"


def test_the_command_line_wins():
    config = composed(
        "dataset=cifar10", "model=simple_cnn", "partition=emd", "local.lr=0.5", "local.batch_size=7", "rounds=3",
        "clients=20", "dataset.transform.crop=null", "algorithm=centralized",
    )  # fmt: skip
    assert readable(config) == "cifar10-emd1.44-simple_cnn-centralized-seed0"
    assert (config.local.lr, config.local.batch_size, config.rounds, config.clients) == (0.5, 7, 3, 20)
    assert config.dataset.transform.crop is None
