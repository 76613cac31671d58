"""Fast composition gives what Hydra gives, beside other uses of Hydra in the same process."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.utils import JobRuntime
from hydra.errors import ConfigCompositionException
from hydra.version import getbase
from omegaconf import DictConfig, OmegaConf

import fedexp
from fedexp.config.compose import Composer, word
from fedexp.config.loader import fewer_maps
from fedexp.config.options import CONF
from fedexp.errors import ConfigError


@pytest.fixture
def composer():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield Composer()


@pytest.mark.parametrize(
    "words",
    [
        ["dataset=mnist", "partition=dir0.1", "clients=7"],
        ["algorithm=fedcat", "algorithm.epsilon=0.25", "local={epochs: 2}", "+dataset.source='a copy, of sorts'"],
        ["seed=3", "local.lr=1", "hardware.workers=2", "local={epochs: 2}", "targets=[1]", "measures.divergence=null"],
        ["partition.alpha=0.7", "seed=3"],
        ["dataset=mnist", "~dataset.download", "targets=[0.5,0.9]", "++partition.alpha=3", "partition.min_size=null"],
        ["dataset.transform=null", "local.lr=1", "local.lr=2", "targets=[0.5,0.9]", "targets=[]", "seed=7"],
        ["partition=dir", "partition.alpha=1", "partition.name=mine", "local.steps=3", "local.steps=null"],
    ],
)
def test_it_is_what_hydra_composes(composer, words):
    composer(["dataset=mnist", "clients=9"])  # what is remembered must not leak
    composer.plain(["dataset=mnist", "clients=9", "local.epochs=7", "targets=[0.3]"])
    for _ in range(2):
        config = composer(words)
        assert OmegaConf.to_container(config) == OmegaConf.to_container(compose("config", overrides=words))
        assert composer.plain(words) in (None, OmegaConf.to_container(config, resolve=True))


def test_single_values_are_plain_ones_of_the_schema_s_types(composer):
    words = ["algorithm=fedprox", "algorithm.mu=1", "local.lr=1", "seed=3", "targets=[1]", "evaluate.clients=all"]
    plain = composer.plain(words)
    assert plain == OmegaConf.to_container(composer(words), resolve=True)
    assert [type(each) for each in (plain["local"]["lr"], plain["targets"][0])] == [float, float]
    assert composer.plain(["algorithm=fedprox"])["seed"] == 0  # what another command line set is its own


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["partition=dir", "seed=3", "partition.alpha=0.7"], "dir0.7"),
        (["partition=dir", "partition.alpha=0.7", "local.lr=1", "partition.alpha=3"], "dir3"),
        (["partition=emd", "partition.name=mine", "partition.target=1.1"], "mine"),
        (["paper=fedconcat", "dataset=cifar100", "model=resnet50", "+table.name=x", "local.lr=1"], "classes2"),
    ],
)
def test_values_that_others_refer_to_are_in_them(composer, words, name):
    for _ in range(2):
        plain = composer.plain([*words, "rounds=7"])
        assert plain == OmegaConf.to_container(composer([*words, "rounds=7"]), resolve=True)
        assert plain["partition"]["name"] == name
        assert composer.plain(words)["rounds"] != 7


def test_a_value_that_is_added_is_there_for_its_own_command_line_alone(composer):
    plain = composer.plain(["+dataset.source=own", "seed=3"])
    assert plain == OmegaConf.to_container(composer(["+dataset.source=own", "seed=3"]), resolve=True)
    assert plain["dataset"]["source"] == "own"
    assert "source" not in composer.plain(["seed=3"])["dataset"]
    assert composer.plain(["dataset.source=other"]) is None  # without the + this is a mistake, as it was before
    assert composer.plain(["+dataset.source=other"])["dataset"]["source"] == "other"


@pytest.mark.parametrize(
    "words",
    [
        ["clients=many"], ["clientz=3"], ["algorithm=nothing"], ["dataset.source=own"], ["~dataset.root"],
        ["+dataset.source={name: own}"], ["+dataset.of.whom=own"], ["local={epochs: 2}"], ["dataset.transform=null"],
        ["seed=${rounds}"],
    ],
)  # fmt: skip
def test_what_is_more_than_single_values_is_left_to_omegaconf(composer, words):
    assert composer.plain(words) is None


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["paper=fedconcat", "dataset=fmnist", "partition=dir0.1", "algorithm=fedconcat_id"],
        ["+table=fedcat_1"],
        ["+scale=quick", "server_optimizer=adam", "compression=top_k", "clients=7", "~dataset.size"],
    ],
)
def test_the_loader_composes_what_hydra_does(words):
    """Value by value: its type, its flags and its place, too."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composer = Composer()
        for other in ("algorithm=fedprox", "partition=iid"):  # what is kept is not changed by what is composed of it
            composer._loader.compose([other, "dataset=mnist"])
            expected = compose("config", overrides=words)
            assert_same_nodes(composer._loader.compose(words), expected)
            with fewer_maps():  # as within the command line's sweeps
                assert_same_nodes(compose("config", overrides=words), expected)
                assert_same_nodes(composer._loader.compose(words), expected)


def assert_same_nodes(found, expected):
    assert type(found) is type(expected)
    kept = [{**vars(node._metadata), "resolver_cache": None} for node in (found, expected)]  # ${now:} of Hydra's node
    assert kept[0] == kept[1]
    if not isinstance(expected, DictConfig) or expected._is_none():
        assert found._value() == expected._value()
        return
    assert list(found) == list(expected)
    for name in expected:
        assert_same_nodes(found._get_node(name), expected._get_node(name))


def test_hydra_s_own_keys_are_left_to_hydra(composer):
    assert "hydra" not in composer.whole(["hydra.job.name=other", "clients=7"])
    with pytest.raises(ConfigCompositionException, match=r"hydra\.nothing"):
        composer.whole(["hydra.nothing=1"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm=nothing"], "Could not find 'algorithm/nothing'"),
        (["clientz=3"], "clientz"),
        (["clients=many"], "must be a whole number"),
        (["~dataset.nothing"], "nothing"),
    ],
)
def test_what_cannot_be_composed_is_said(composer, words, said):
    for _ in range(2):
        with pytest.raises(ConfigError, match=said):
            composer(words)


@pytest.mark.parametrize(
    "value",
    [
        3, 0.5, None, True, "plain", "with (signs), 'quotes' and=more", [1, 2], "a\\b", "ends in \\", "a\\'b",
        "données", {"x": ["ñ", "y'"]},
    ],
)  # fmt: skip
def test_a_word_is_read_back_as_it_was(composer, value):
    assert composer([word("+dataset.source", value)]).dataset.source == value


def test_a_tuple_is_written_as_a_list():
    assert fedexp.compose(targets=(0.7, 0.8)).targets == [0.7, 0.8]


@pytest.mark.parametrize(
    ("words", "targets"),
    [
        ("targets=0.8", [0.8]), ("++targets=1", [1.0]), ("targets=8e-1", [0.8]), ("targets=8.E-01", [0.8]),
        ("targets=[0.7,0.8]", [0.7, 0.8]),
    ],
)  # fmt: skip
def test_a_bare_number_is_a_list_of_one(composer, words, targets):
    assert composer([words]).targets == targets


def test_a_program_of_hydra_s_own_composes_before_and_after(tmp_path):
    (tmp_path / "mine.yaml").write_text("own: 3\n")
    with initialize_config_dir(str(tmp_path), job_name="theirs", version_base="1.2"):
        assert compose("mine").own == 3
        assert fedexp.compose("clients=7").clients == 7
        with pytest.raises(ConfigError, match="clientz=7: no such key; did you mean clients"):
            fedexp.compose("clientz=7")
        assert compose("mine", overrides=["own=4"]).own == 4
        assert (JobRuntime.instance().get("name"), str(getbase())) == ("theirs", "1.2")


def test_threads_compose_at_once():
    with ThreadPoolExecutor(4) as threads:
        configs = list(threads.map(lambda seed: fedexp.compose("algorithm=fedprox", seed=seed), range(8)))
    assert [config.seed for config in configs] == list(range(8))
