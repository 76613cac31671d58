"""Scales shrink what a cell runs on."""

import re

import pytest
from composing import composed

from fedexp.config.checks import check
from fedexp.config.fingerprint import fingerprint
from fedexp.errors import ConfigError
from fedexp.sweep.scale import scaled

QUICK = composed("+scale=quick").scale


def test_quick_shrinks_whatever_needs_time_and_says_so():
    words = ["dataset=cifar10", "model=resnet50", "clients=100", "clients_per_round=10", "rounds=500"]
    small = composed(*words, *scaled(composed(*words), QUICK))
    check(small)
    assert (small.clients, small.clients_per_round, small.rounds) == (10, 2, 5)
    assert small.model.name == "simple_cnn"
    assert small.dataset._target_ == "fedexp.data.digits.digits"
    assert (small.dataset.name, small.dataset.source) == ("cifar10", "digits in its place")


def test_another_scale_is_another_run():
    mnist = composed("dataset=mnist")
    assert fingerprint(composed("dataset=mnist", "+scale.name=quick")) == fingerprint(mnist)
    assert fingerprint(composed("dataset=mnist", *scaled(mnist, QUICK))) != fingerprint(mnist)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["+scale.at_most=3"], "scale.at_most=3: must be keys with values"),
        (["+scale.instead=[model]"], "scale.instead=['model']: must be keys with values"),
        (["+scale.at_most.rounds=few"], "scale.at_most.rounds=few: must be a number"),
        (["+scale.most=3"], "scale.most=3: no such key"),
    ],
)
def test_a_scale_that_makes_no_sense_is_refused(words, said):
    with pytest.raises(ConfigError, match="^" + re.escape(said)):
        scaled(composed(), composed(*words).scale)
