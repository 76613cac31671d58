"""What groups name in _target_, and that their keys are what it takes."""

import inspect
from dataclasses import dataclass
from typing import ClassVar

import pytest
from composing import composed
from hydra.utils import get_object

import fedexp
from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.checks import check
from fedexp.config.constructors import GIVEN, GROUPS, PARTS
from fedexp.config.options import CONF
from fedexp.errors import ConfigError


@pytest.mark.parametrize("group", [*GROUPS, *PARTS, "tracking"])
def test_an_option_has_every_key_that_its_constructor_takes(group):
    """So that --help lists it, and it can be given without a +. Stragglers alone leave keys out, as their file says."""
    for option in sorted({path.stem for path in (CONF / group).glob("*.yaml")} - {"own", "stragglers"}):
        node = composed(f"{group}={option}")[group]
        taken = inspect.signature(get_object(node["_target_"])).parameters
        assert {*taken} - GIVEN.get(group, set()) <= {*node}, option


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("selection=clusamp selection.distance=cosine", "selection.distance=cosine: must be one of arccos, l1, l2"),
        ("selection=clusamp +selection.distanse=l1", "selection.distanse=l1: no such key; did you mean distance?"),
        ("server_optimizer.lr=0", "server_optimizer.lr=0: must be above 0"),
        ("server_optimizer=momentum server_optimizer.beta=1", "server_optimizer.beta=1: must be in [0, 1)"),
        ("server_optimizer=adam +server_optimizer.beta3=0.9", "server_optimizer.beta3=0.9: no such key; did you mean"),
        ("compression=top_k compression.share=1.5", "compression.share=1.5: must be in (0, 1]"),
        ("compression=top_k compression.error_feedback=3.5", "compression.error_feedback=3.5: "),
        ("+compression.share=0.5", "compression.share=0.5: no such key; "),
        ("+privacy.epsilon=1", "privacy.epsilon=1: no such key"),
        ("algorithm._target_=fedexp.algorithms.mine.Mine", "algorithm._target_=fedexp.algorithms.mine.Mine: cannot be"),
    ],
)
def test_a_group_s_keys_are_what_its_constructor_takes(word, said):
    with pytest.raises(ConfigError) as error:
        check(composed(*word.split()))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def signals():
    """A data set of one's own that lacks the parameter `transform`."""


def test_a_data_set_must_take_transform():
    with pytest.raises(ConfigError, match=r"^dataset._target_=.*signals: must take transform, which every data set"):
        check(composed("dataset=own", f"dataset._target_={__name__}.signals"))


class Forgotten(FedAvg):
    pull: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Pulled(FedAvg):
    pull: float = 0.1
    scheme: ClassVar[str] = "plain"


def test_a_class_that_was_not_decorated_is_said():
    own = ["algorithm=own", f"algorithm._target_={__name__}.Forgotten"]
    with pytest.raises(ConfigError) as error:
        fedexp.compose(*own, "+algorithm.pull=0.5")
    advice = "Forgotten annotates it: decorate the class with @dataclass(frozen=True, kw_only=True)"
    assert str(error.value) == f"algorithm.pull=0.5: no such key; there are none here; {advice}"
    with pytest.raises(ConfigError, match=r"algorithm\.pul=0\.5: no such key; there are none here$"):
        fedexp.compose(*own, "+algorithm.pul=0.5")


def test_a_class_that_was_decorated_is_not_told_to_be():
    own = ["algorithm=own", f"algorithm._target_={__name__}.Pulled"]
    assert fedexp.compose(*own, "+algorithm.pull=0.5").algorithm.pull == 0.5
    with pytest.raises(ConfigError, match=r"algorithm\.scheme=x: no such key; known: pull$"):
        fedexp.compose(*own, "+algorithm.scheme=x")


def test_a_list_is_of_the_type_of_its_argument():
    """What was found of a value is kept, and must be found of that one alone."""
    for _ in range(2):
        check(composed("algorithm=fedavg_ft", "algorithm.tuning_epochs=[1,2]"))
        with pytest.raises(
            ConfigError, match=r"algorithm\.tuning_epochs=\['?1'?, 'x'\]: x, which is in it, must be a who"
        ):
            check(composed("algorithm=fedavg_ft", "algorithm.tuning_epochs=[1,x]"))
