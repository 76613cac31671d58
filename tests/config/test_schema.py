"""The schema: Python's defaults are those of conf/, and what a config lacks is named."""

from dataclasses import asdict

import pytest
import yaml
from composing import composed
from omegaconf import OmegaConf

from fedexp.config.options import CONF
from fedexp.config.schema import Evaluate, lacking
from fedexp.engine import Hardware, Local


@pytest.mark.parametrize(
    ("settings", "file", "key"),
    [
        (Local(), "config.yaml", "local"),
        (Evaluate(), "config.yaml", "evaluate"),
        (Hardware(), "hardware/auto.yaml", ""),
    ],
    ids=["local", "evaluate", "hardware"],
)
def test_defaults_in_python_are_those_of_the_config(settings, file, key):
    written = yaml.safe_load((CONF / file).read_text())
    assert asdict(settings) == (written[key] if key else written)


def test_a_run_s_own_config_lacks_nothing():
    assert lacking(OmegaConf.to_container(composed())) == []


@pytest.mark.parametrize("key", ["selection", "evaluate", "seed", "model._target_"])
def test_what_a_config_lacks_is_named(key):
    config = OmegaConf.to_container(composed())
    group, _, inner = key.partition(".")
    del (config[group] if inner else config)[inner or group]
    assert lacking(config) == [key]
