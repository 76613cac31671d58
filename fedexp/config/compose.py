"""From a command line to its config, fast enough for the thousand cells of a table."""

import pickle
import re
from collections.abc import Sequence
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

from fedexp.config.options import CONF
from fedexp.config.schema import check
from fedexp.errors import ConfigError, require


class NoConfig(ConfigError):
    """No config can be composed from `words`; Hydra's error is the cause."""

    def __init__(self, words: Sequence[str], error: Exception) -> None:
        super().__init__("overrides", " ".join(words), first_line(error))
        self.words = list(words)


def composed(words: Sequence[str]) -> DictConfig:
    """The checked config of a command line that stands for one run. Raises ConfigError for a sweep."""
    words = lists(words)
    one = "stands for many runs, and this program takes one"
    for each in words:
        require(each not in ("-m", "--multirun"), "words", each, f"{one}: leave it out")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for override in Composer().parse(words):
            key, _, values = override.input_line.partition("=")
            require(not override.is_sweep_override(), key, values, f"{one}: give a single value")
        try:
            config = compose("config", overrides=list(words))
        except Exception as error:
            raise NoConfig(words, error) from error
    refuse_tables(config, f"{one}: give a run's own keys, e.g. paper=fedcat dataset=mnist partition=dir0.1")
    check(config)
    return config


def refuse_tables(config: DictConfig, right: str) -> None:
    """Raise ConfigError where a single run is given a table or a scale; their names, which its sweep sets, are fine."""
    for key in ("table", "scale"):
        require(set(config[key]) <= {"name"}, key, config[key].get("name"), right)


def lists(words: Sequence[str]) -> list[str]:
    """The words with a single number for `targets` made a list: `targets=0.8` becomes `targets=[0.8]`."""
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
    """Composes configs from overrides. Hydra composes only the choices of groups, and each result is kept: cells that
    differ in plain values share it.

    Hydra must be initialised already: inside a sweep, or within `hydra.initialize_config_dir`.
    """

    def __init__(self) -> None:
        # Configs that are copied often are kept pickled: unpickling is three times as fast as copying.
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
        except Exception as error:  # Hydra's and OmegaConf's, and any that unexpected words make them raise
            raise NoConfig(words, error) from error
        return config

    def plain(self, words: Sequence[str], config: DictConfig) -> dict[str, Any]:
        """The config of a command line as plain, resolved values. If no other value depends on the keys that the words
        set, only these keys are read from `config`, and all others come from the groups' own config, which is kept."""
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
        """The groups' own config as plain values, pickled, and all words that occur in its interpolations. None if it
        cannot be resolved without further values."""
        base = self._base(choices)
        written = yaml.safe_dump(OmegaConf.to_container(base))
        try:
            plain = OmegaConf.to_container(base, resolve=True)
        except OmegaConfBaseException:
            return None
        lines = [line for line in written.splitlines() if "$" in line]
        return pickle.dumps(plain, pickle.HIGHEST_PROTOCOL), {*re.findall(r"\w+", " ".join(lines))}

    def _split(self, words: Sequence[str]) -> tuple[tuple[str, ...], list[Override]]:
        """The choices of groups, as words, and the overrides of keys."""
        parsed = self.parse(words)
        values = [override for override in parsed if self.is_value(override)]
        return tuple(override.input_line for override in parsed if not self.is_value(override)), values

    def _base(self, choices: tuple[str, ...]) -> DictConfig:
        if choices not in self._bases:
            try:
                self._bases[choices] = pickle.dumps(compose("config", overrides=list(choices)), pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                self._bases[choices] = error
        base = self._bases[choices]
        if isinstance(base, Exception):
            raise base
        return pickle.loads(base)

    def is_value(self, override: Override) -> bool:
        """Whether the override sets a key and does not choose an option of a group."""
        key = override.key_or_group
        if override.package is not None or override.is_hydra_override() or "/" in key:
            return False
        return "." in key or (override.type is OverrideType.CHANGE and key not in self._groups)

    @cached_property
    def _groups(self) -> set[str]:
        return set(GlobalHydra.instance().config_loader().get_group_options("", ObjectType.GROUP))


def _stands_alone(override: Override, words: set[str]) -> bool:
    """Whether an override changes an existing value to which no interpolation, made of `words`, can refer."""
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
    """The first line of the deepest cause's message."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
