"""Configs of command lines, composed once for all tests of a process that choose the same groups."""

from hydra import initialize_config_dir

import fedexp.config.compose
from fedexp.config.compose import Composer
from fedexp.config.options import CONF
from fedexp.sweep.jobs import sweeps

COMPOSER = Composer()


def composed(*words):
    """The config of a command line, not checked."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return COMPOSER(words)


def checked(*words):
    """The checked config of a command line that stands for one run."""
    return fedexp.config.compose.composed(words, COMPOSER)


def asked(*words):
    """The sweeps of a command line."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return sweeps(list(words), COMPOSER)
