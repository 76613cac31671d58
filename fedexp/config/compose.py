"""From a command line to its config; many of them fast enough for a thousand cells of a table."""

import pickle
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedexp.config.loader import Loader
from fedexp.config.options import CONF
from fedexp.config.schema import check
from fedexp.errors import ConfigError, require


class NoConfig(ConfigError):
    """`words` compose to no config; what Hydra said is the cause."""

    def __init__(self, words: Sequence[str], error: Exception) -> None:
        super().__init__("overrides", " ".join(words), first_line(error))
        self.words = list(words)


def composed(words: Sequence[str], composer: "Composer | None" = None) -> DictConfig:
    """The checked config of a command line that stands for one run. Raises ConfigError for a sweep.

    composer: one that remembers what other command lines have needed.
    """
    words, composer = lists(words), composer or Composer()
    one = "stands for many runs, and this program takes one"
    for each in words:
        require(each not in ("-m", "--multirun"), "words", each, f"{one}: leave it out")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for override in composer.parse(words):
            key, _, values = override.input_line.partition("=")
            require(not override.is_sweep_override(), key, values, f"{one}: give a single value")
        try:
            config = composer.whole(words)
        except Exception as error:
            raise NoConfig(words, error) from error
    refuse_tables(config, f"{one}: give a run's own keys, e.g. paper=fedcat dataset=mnist partition=dir0.1")
    check(config)
    return config


def refuse_tables(config: DictConfig, right: str) -> None:
    """A run may say which table and scale it is of; a table or scale itself is not for a single run."""
    for key in ("table", "scale"):
        require(set(config[key]) <= {"name"}, key, config[key].get("name"), right)


def lists(words: Sequence[str]) -> list[str]:
    """A single number where a list belongs is a list of one: `targets=0.8` is `targets=[0.8]`."""
    return [re.sub(r"^(\+{0,2}targets)=([\d.]+)$", r"\1=[\2]", each) for each in words]


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
    differ in plain values share it.

    Hydra must be at work already: inside a sweep, or within `hydra.initialize_config_dir`.
    """

    def __init__(self) -> None:
        # What is copied often is kept pickled: to copy it so is three times as fast.
        self._bases: dict[tuple[str, ...], bytes | Exception] = {}
        self._plain: dict[tuple[str, ...], tuple[bytes, set[str]] | None] = {}
        self._words: dict[str, Override] = {}

    @cached_property
    def _parser(self) -> OverridesParser:
        return OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())

    def parse(self, words: Sequence[str]) -> list[Override]:
        words = lists(words)
        for each in words:
            if each not in self._words:
                (self._words[each],) = self._parser.parse_overrides([each])
        return [self._words[each] for each in words]

    def __call__(self, words: Sequence[str]) -> DictConfig:
        """The config of a command line. Raises NoConfig if there is none."""
        choices, values = self._split(words)
        try:
            config = self._base(choices)
            for override in values:
                apply(override, config)
        except Exception as error:  # Hydra's own, OmegaConf's, and what their code raises for words it never expected
            raise NoConfig(words, error) from error
        return config

    def whole(self, words: Sequence[str]) -> DictConfig:
        """The config as `hydra.compose` gives it, and its errors: values that can't be set are refused by its rules."""
        if not any(override.is_hydra_override() for override in self.parse(words)):
            with suppress(Exception):  # it is Hydra's own to refuse in its words, or to find a way after all
                return self._loader.compose(words)
        return compose("config", overrides=list(words))

    def plain(self, words: Sequence[str], config: DictConfig) -> dict[str, Any]:
        """The config of a command line with all values resolved, as plain ones. Where nothing else depends on what the
        words set, only that is read from `config`, and all else is as of its groups alone."""
        choices, values = self._split(words)
        if choices not in self._plain:
            self._plain[choices] = self._resolved(choices)
        known = self._plain[choices]
        if known is None or not all(_stands_alone(override, known[1]) for override in values):
            resolved: Any = OmegaConf.to_container(config, resolve=True)
            return resolved
        plain = pickle.loads(known[0])
        for override in values:
            *parents, last = override.key_or_group.split(".")
            node, held = config, plain
            for name in parents:
                node, held = node[name], held[name]
            value = node[last]
            held[last] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        return plain

    def _resolved(self, choices: tuple[str, ...]) -> tuple[bytes, set[str]] | None:
        """The groups' own config as plain values, pickled, and all words that its interpolations are of. None where it
        does not resolve without further values."""
        base = self._base(choices)
        written = yaml.safe_dump(OmegaConf.to_container(base))
        try:
            plain = OmegaConf.to_container(base, resolve=True)
        except OmegaConfBaseException:
            return None
        lines = [line for line in written.splitlines() if "$" in line]
        return pickle.dumps(plain, pickle.HIGHEST_PROTOCOL), {*re.findall(r"\w+", " ".join(lines))}

    def _split(self, words: Sequence[str]) -> tuple[tuple[str, ...], list[Override]]:
        """The choices of groups, as words, and what is about keys."""
        parsed = self.parse(words)
        values = [override for override in parsed if self.is_value(override)]
        return tuple(override.input_line for override in parsed if not self.is_value(override)), values

    def _base(self, choices: tuple[str, ...]) -> DictConfig:
        if choices not in self._bases:
            try:
                self._bases[choices] = pickle.dumps(self.whole(choices), pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                self._bases[choices] = error
        base = self._bases[choices]
        if isinstance(base, Exception):
            raise base
        return pickle.loads(base)

    @cached_property
    def _loader(self) -> Loader:
        return Loader(GlobalHydra.instance().config_loader().get_search_path(), self.parse)

    def is_value(self, override: Override) -> bool:
        """Whether it is about a key and not about the choice of a group."""
        key = override.key_or_group
        if override.package is not None or override.is_hydra_override() or "/" in key:
            return False
        return "." in key or (override.type is OverrideType.CHANGE and key not in self._groups)

    @cached_property
    def _groups(self) -> set[str]:
        return set(GlobalHydra.instance().config_loader().get_group_options("", ObjectType.GROUP))


def _stands_alone(override: Override, words: set[str]) -> bool:
    """Whether an override changes one value that is there, and no interpolation, made of `words`, can be about it."""
    plainly = override.type is OverrideType.CHANGE and "$" not in override.input_line
    return plainly and not words & {*override.key_or_group.split(".")}


def apply(override: Override, config: DictConfig) -> None:
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
