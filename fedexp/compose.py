"""Composing many configs of one program: what Hydra does for one command line, fast enough for a thousand.

Hydra must be at work already: inside a sweep, or within `hydra.initialize_config_dir`.
"""

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedexp.errors import ConfigError


class NoConfig(ConfigError):
    """`words` compose to no config; what Hydra said is the cause."""

    def __init__(self, words: Sequence[str], error: Exception) -> None:
        super().__init__("overrides", " ".join(words), first_line(error))
        self.words = list(words)


def word(key: str, value: Any) -> str:
    """An override as one word of a command line, quoted as Hydra's grammar needs."""
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, str) and not value.replace("_", "").replace(".", "").replace("-", "").isalnum():
        escaped = value.replace("'", "\\'")
        return f"'{escaped}'"
    return str(value)


class Composer:
    """Configs by their overrides. Only the choice of groups is left to Hydra, and remembered: cells that
    differ in plain values share it."""

    def __init__(self) -> None:
        self._bases: dict[tuple[str, ...], DictConfig | HydraException] = {}

    @cached_property
    def _parser(self) -> OverridesParser:
        return OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())

    def parse(self, words: Sequence[str]) -> list[Override]:
        return self._parser.parse_overrides(list(words))

    def __call__(self, words: Sequence[str]) -> DictConfig:
        """The config of a command line. Raises NoConfig if there is none."""
        parsed = self.parse(words)
        values = [override for override in parsed if self.is_value(override)]
        choices = tuple(override.input_line for override in parsed if not self.is_value(override))
        try:
            config = copy.deepcopy(self._base(choices))
            for override in values:
                _apply(override, config)
        except (HydraException, OmegaConfBaseException) as error:
            raise NoConfig(words, error) from error
        return config

    def _base(self, choices: tuple[str, ...]) -> DictConfig:
        if choices not in self._bases:
            try:
                self._bases[choices] = compose("config", overrides=list(choices))
            except HydraException as error:
                self._bases[choices] = error
        base = self._bases[choices]
        if isinstance(base, HydraException):
            raise base
        return base

    def is_value(self, override: Override) -> bool:
        """Whether it is about a key and not about the choice of a group."""
        key = override.key_or_group
        if override.package is not None or override.is_hydra_override() or "/" in key:
            return False
        return "." in key or (override.type is OverrideType.CHANGE and key not in self._groups)

    @cached_property
    def _groups(self) -> set[str]:
        return set(GlobalHydra.instance().config_loader().get_group_options("", ObjectType.GROUP))


def _apply(override: Override, config: DictConfig) -> None:
    """Set, add or delete a key, as Hydra does after it has composed the groups."""
    key = override.key_or_group
    if override.type is not OverrideType.DEL:
        adds = override.type in (OverrideType.ADD, OverrideType.FORCE_ADD)
        OmegaConf.update(config, key, override.value(), merge=True, force_add=adds)
        return
    parent, _, last = key.rpartition(".")
    with open_dict(config):
        del OmegaConf.select(config, parent, throw_on_missing=True)[last]


def first_line(error: BaseException) -> str:
    """The one line that matters of the deepest cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
