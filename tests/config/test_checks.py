"""What values and combinations are refused before anything is built."""

import sys
from types import ModuleType

import pytest
from composing import composed

from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.checks import check
from fedexp.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("evaluate.clients=everyone", "evaluate.clients=everyone: must be one of none, participants, all"),
        ("evaluate.clients=all evaluate.on=holdout", "evaluate.on=holdout: nothing is held out; add partition.holdout"),
        ("partition.holdout=1", "partition.holdout=1: must be in [0, 1)"),
        ("partition.noise=-0.1", "partition.noise=-0.1: must be at least 0"),
        ("partition.noise=true", "partition.noise=true: must be at least 0"),
        ("hardware.workers='²'", "hardware.workers=²: must be auto or a number of at least 1"),
        (
            "metric=rounds_to.0.9 targets=0.8",
            "metric=rounds_to.0.9: names none of the targets; did you mean rounds_to.0.8",
        ),
        ("metric=rounds_to", "metric=rounds_to: names none of the targets; there are none here"),
        (
            "metric=simulated_seconds_to.0.9",
            "metric=simulated_seconds_to.0.9: names none of the targets; there are none",
        ),
        ("metric=test_accuracy", "metric=test_accuracy: is not a number in result.json; did you mean best_accuracy?"),
        (
            "evaluate.on=train",
            "evaluate.on=train: no client is evaluated; add evaluate.clients=all, or leave this matc",
        ),
        ("reference_rounds=3", "reference_rounds=3: there is no reference to stop; add reference=centralized"),
        ("reference=central", "reference=central: must be one of centralized, or null"),
        ("+measures.mine=fedexp.measure.mine.mine", "measures.mine=fedexp.measure.mine.mine: cannot be imported"),
    ],
)
def test_what_cannot_work_is_named_with_its_value(word, said):
    with pytest.raises(ConfigError) as error:
        check(composed(*word.split()))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        "metric=best_accuracy", "metric=epsilon", "metric=rounds_to.0.9 targets=[0.9]", "metric=client_accuracy_mean",
        "metric=accuracy_gain algorithm=own algorithm._target_=fedexp_own.Mine",
    ],
)  # fmt: skip
def test_a_metric_that_may_be_in_a_result_is_accepted(words, monkeypatch):
    module = ModuleType("fedexp_own")
    module.Mine = type("Mine", (FedAvg,), {})
    monkeypatch.setitem(sys.modules, "fedexp_own", module)
    check(composed(*words.split()))
