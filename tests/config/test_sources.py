"""The bounds that a help tells, against those that are checked."""

import pkgutil
import re

import pytest

from fedexp.config.bounds import declared
from fedexp.config.options import CONF
from fedexp.config.sources import declared_by

TARGETS = sorted({
    target for path in CONF.rglob("*.yaml") for target in re.findall(r"_target_: (fedexp\.[\w.]+)", path.read_text())
})  # fmt: skip
# A kind of bound, and values, that are another module's own.
UNKNOWN = {"fedexp.algorithms.label_clusters.LabelClusters": {"clusters"}, "fedexp.algorithms.cadis.Cadis": {"kernel"}}


@pytest.mark.parametrize("target", TARGETS)
def test_they_are_the_same(target):
    expected = declared(pkgutil.resolve_name(target))
    assert declared_by(target) == {key: each for key, each in expected.items() if key not in UNKNOWN.get(target, ())}


def test_there_are_many():
    assert sum(len(declared_by(target)) for target in TARGETS) > 100


@pytest.mark.parametrize("target", ["torch.optim.SGD", "fedexp.nothing.There", "fedexp.algorithms.fedavg.Nobody"])
def test_of_what_is_not_a_class_of_fedexp_nothing_is_known(target):
    assert declared_by(target) == {}
