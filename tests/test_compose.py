"""Fast composition gives what Hydra gives; scales shrink what a cell runs on."""

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from recorded import asked

from fedexp.compose import Composer, word
from fedexp.errors import ConfigError
from fedexp.main import CONF
from fedexp.scale import scaled
from fedexp.settings import check, fingerprint


@pytest.fixture
def composer():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield Composer()


@pytest.mark.parametrize(
    "words",
    [
        ["dataset=mnist", "partition=dir0.1", "clients=7"],
        ["algorithm=fedcat", "algorithm.epsilon=0.25", "local={epochs: 2}", "+dataset.source='a copy, of sorts'"],
        ["dataset=mnist", "~dataset.download", "targets=[0.5,0.9]", "++partition.alpha=3", "partition.min_size=null"],
    ],
)
def test_it_is_what_hydra_composes(composer, words):
    composer(["dataset=mnist", "clients=9"])  # what is remembered must not leak
    for _ in range(2):
        assert OmegaConf.to_container(composer(words)) == OmegaConf.to_container(compose("config", overrides=words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm=nothing"], "Could not find 'algorithm/nothing'"),
        (["clientz=3"], "clientz"),
        (["clients=many"], "could not be converted to Integer"),
        (["~dataset.nothing"], "nothing"),
    ],
)
def test_what_cannot_be_composed_is_said(composer, words, said):
    for _ in range(2):
        with pytest.raises(ConfigError, match=said):
            composer(words)


@pytest.mark.parametrize("value", [3, 0.5, None, True, "plain", "with (signs), 'quotes' and=more", [1, 2], "a\\b"])
def test_a_word_is_read_back_as_it_was(composer, value):
    assert composer([word("+dataset.source", value)]).dataset.source == value


def test_quick_shrinks_whatever_needs_time_and_says_so(composer):
    words = ["dataset=cifar10", "model=resnet50", "clients=100", "clients_per_round=10", "rounds=500", "+scale=quick"]
    small = composer([*words, *scaled(composer(words))])
    check(small)
    assert (small.clients, small.clients_per_round, small.rounds) == (10, 2, 5)
    assert small.model.name == "simple_cnn"
    assert small.dataset._target_ == "fedexp.data.digits.digits"
    assert (small.dataset.name, small.dataset.source) == ("cifar10", "digits in its place")
    assert scaled(composer(words[:-1])) == []


def test_another_scale_is_another_run(composer):
    words = ["dataset=mnist", "+scale=quick"]
    assert fingerprint(composer(words)) == fingerprint(composer(words[:1]))
    assert fingerprint(composer([*words, *scaled(composer(words))])) != fingerprint(composer(words[:1]))


def test_an_ordinary_multirun_is_a_product():
    (sweep,) = asked("algorithm=fedavg,fedcat", "clients_per_round=2,3", "seed=range(2)", "rounds=3")
    assert len(sweep.jobs) == 8
    assert sweep.jobs[0].name == "algorithm=fedavg clients_per_round=2 seed=0"
    last = sweep.jobs[-1].config
    assert (last.algorithm.name, last.clients_per_round, last.seed, last.rounds) == ("fedcat", 3, 1, 3)


def test_the_command_line_wins_over_the_table():
    (sweep,) = asked("+table=fedcat_3", 'table.select="cifar10 dir0.1 fed(avg|cat)$"', "seed=5,6", "clients=50")
    assert [job.config.seed for job in sweep.jobs] == [5, 6, 5, 6]
    assert {job.config.clients for job in sweep.jobs} == {50}
    assert {job.protocol.clients for job in sweep.jobs} == {100}


def test_two_tables_share_their_runs():
    first, third = asked("+table=fedcat_1,fedcat_3", 'table.select="cifar10 dir0.1 fedavg"')
    assert [job.fingerprint for job in first.jobs] == [job.fingerprint for job in third.jobs]


def test_keys_of_no_table_are_refused():
    with pytest.raises(ConfigError, match="no table is chosen"):
        asked("table.seeds=[1]")
