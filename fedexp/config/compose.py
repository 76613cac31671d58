"""From a command line to its config, fast enough for the thousand cells of a table."""

import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from os import PathLike
from threading import RLock
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString
from hydra.core.singleton import Singleton
from hydra.core.utils import JobRuntime
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf

from fedexp.config.checks import check
from fedexp.config.kinds import in_words
from fedexp.config.known import Known, apply
from fedexp.config.loader import Loader
from fedexp.config.options import CONF
from fedexp.errors import ConfigError, require

_NUMBER = r"[-+]?[\d._]+([eE][-+]?\d+)?"
_ONE_AT_A_TIME = RLock()
# What initialising Hydra changes, for all threads of the process.
_STATE: tuple[type, ...] = (GlobalHydra, JobRuntime, VersionBase)


@contextmanager
def composing() -> Iterator[None]:
    """Within this context Hydra composes fedexp's configs, for one thread at a time.

    The program that calls fedexp may use Hydra itself: what Hydra keeps for it is put aside, and is back at the end.
    """
    with _ONE_AT_A_TIME:
        held = {kind: Singleton._instances.pop(kind) for kind in _STATE if kind in Singleton._instances}
        try:
            with initialize_config_dir(str(CONF), version_base="1.3"):
                yield
        finally:
            for kind in _STATE:
                Singleton._instances.pop(kind, None)
            Singleton._instances.update(held)


class NoConfig(ConfigError):
    """No config can be composed from `words`; Hydra's error is the cause."""

    def __init__(self, words: Sequence[str], error: Exception) -> None:
        super().__init__("overrides", " ".join(words), first_line(error))
        self.words = list(words)


def composed(words: Sequence[str], composer: "Composer | None" = None) -> DictConfig:
    """The checked config of a command line that stands for one run. Raises ConfigError for a sweep.

    composer: one that has composed other command lines, and remembers what it has read.
    """
    words, composer = lists(words), composer or Composer()
    one = "asks for several runs, and this program takes one"
    for each in words:
        require(each not in ("-m", "--multirun"), "", each, f"{one}: leave it out")
    with composing():
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
    """Raise ConfigError where a single run is given a table or a scale; their names, which its sweep sets, are fine."""
    for key in ("table", "scale"):
        require(set(config[key]) <= {"name"}, key, config[key].get("name"), right)


def lists(words: Sequence[str]) -> list[str]:
    """The words with a single number for `targets` made a list: `targets=0.8` becomes `targets=[0.8]`."""
    return [re.sub(rf"^(\+{{0,2}}targets)=({_NUMBER})$", r"\1=[\2]", each) for each in words]


def word(key: str, value: Any) -> str:
    """An override as one word of a command line, quoted as Hydra's grammar needs. Raises ConfigError for an object
    whose text is no value: an array or a tensor would be read as something else."""
    try:
        return f"{key}={_text(value)}"
    except TypeError as error:
        right = f"is {error}; give a number, a text, a path, or a list or dict of these"
        raise ConfigError(key, value, right) from None


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple) or OmegaConf.is_list(value):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict) or OmegaConf.is_dict(value):
        return f"{{{','.join(f'{key}:{_text(each)}' for key, each in value.items())}}}"
    text = str(value)
    if isinstance(value, str | PathLike) and not re.fullmatch(r"[\w.-]+", text, re.ASCII):
        return QuotedString(text, Quote.single).with_quotes()
    if not isinstance(value, str | PathLike | range) and not re.fullmatch(r"[\w.:+-]+", text, re.ASCII):
        raise TypeError(f"of the type {type(value).__name__}")
    return text


class Composer:
    """Composes configs from overrides. Hydra composes only the choices of groups, and each result is kept: cells that
    differ in plain values share it.

    Hydra must be initialised already: inside a sweep, or within `composing`.
    """

    def __init__(self) -> None:
        # Kept pickled: a copy is then made three times as fast.
        self._bases: dict[tuple[str, ...], bytes | Exception] = {}
        self._plain: dict[tuple[str, ...], Known | None] = {}
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

    def whole(self, words: Sequence[str]) -> DictConfig:
        """The config that `hydra.compose` gives, and its errors for values that cannot be set."""
        if not any(override.is_hydra_override() for override in self.parse(words)):
            with suppress(Exception):  # what the loader cannot compose, Hydra composes, or refuses in its own words
                return self._loader.compose(words)
        return compose("config", overrides=list(words))

    def plain(self, words: Sequence[str]) -> dict[str, Any] | None:
        """The config of a command line with all values resolved, as plain ones, made without OmegaConf's objects: a
        sweep of thousands of runs would spend most of its time on them. Only what the words set belongs to this config;
        all else is shared with others, so nothing in it may be changed. None where they set more than single values, or
        compose to no config: __call__ says why.
        """
        choices, values = self._split(words)
        if any(each.is_delete() or "$" in each.input_line for each in values):
            return None
        known = self._known(choices)
        referred = [each for each in values if known is not None and known.may_refer_to(each)]
        if referred:
            known = self._known((*choices, *(each.input_line for each in referred)))
        if known is None:
            return None
        plain = dict(known.plain)
        for override in values:
            if override in referred:
                continue
            found = known.value(override)
            if found is None:
                return None
            parents, last, value = found
            node = plain
            for name in parents:
                node[name] = dict(node[name])
                node = node[name]
            node[last] = value
        return plain

    def _known(self, words: tuple[str, ...]) -> Known | None:
        """The values of a command line, kept for later ones. None where it has no config, or one that does not resolve
        by itself."""
        if words not in self._plain:
            try:
                self._plain[words] = Known(self(words))
            except Exception:
                self._plain[words] = None
        return self._plain[words]

    def _split(self, words: Sequence[str]) -> tuple[tuple[str, ...], list[Override]]:
        """The choices of groups, as words, and the overrides of keys."""
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
        """Whether the override sets a key and does not choose an option of a group."""
        key = override.key_or_group
        if override.package is not None or override.is_hydra_override() or "/" in key:
            return False
        return "." in key or (override.type is OverrideType.CHANGE and key not in self._groups)

    @cached_property
    def _groups(self) -> set[str]:
        return set(GlobalHydra.instance().config_loader().get_group_options("", ObjectType.GROUP))


def first_line(error: BaseException) -> str:
    """The first line of the deepest cause's message, in plain words."""
    error = deepest(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    inside = re.search(r"full_key: \S+\[", str(error)) is not None
    return in_words(lines[0], inside) if lines else type(error).__name__


def deepest(error: BaseException) -> BaseException:
    """The error at the end of the chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
