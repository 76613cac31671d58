"""A config as plain values, for sweeps of thousands of runs: what a few more words change in it is found once."""

import re
from dataclasses import replace
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict

from fedexp.config.schema import flat

_NEAR = r"\$\{(oc\.select:)?\s*(\.|\$)"  # ${.alpha}, ${${group}.name}


class Known:
    """A config as plain values, and what single further values become in it.

    words: all words in its interpolations; near: those in relative ones (${.alpha}) and in nested ones (${${group}.x}).
    Raises OmegaConfBaseException where they do not resolve.
    """

    def __init__(self, config: DictConfig) -> None:
        unresolved: Any = OmegaConf.to_container(config)
        written = [str(value) for value in flat(unresolved).values() if "$" in str(value)]
        self.words = {*re.findall(r"\w+", " ".join(written))}
        self.near = {*re.findall(r"\w+", " ".join(filter(re.compile(_NEAR).search, written)))}
        self.plain: Any = OmegaConf.to_container(config, resolve=True)
        self._config = config  # where values are set and read back; what they were before has no effect on that
        self._values: dict[str, tuple[list[str], str, Any] | None] = {}

    def may_refer_to(self, override: Override) -> bool:
        """Whether an interpolation may refer to the key that an override sets: by its whole name, which begins with the
        name of its group, or from nearby. An interpolation that names a group refers to every key in it."""
        names = override.key_or_group.split(".")
        return names[0] in self.words or bool(self.near & {*names})

    def value(self, override: Override) -> tuple[list[str], str, Any] | None:
        """The place of the value that an override changes or adds, as its parents and its name, and the value,
        converted as the schema asks. None where the override sets more than a single value in a group that is there, or
        is not possible."""
        line = override.input_line
        if line not in self._values:
            try:
                self._values[line] = self._changed(override)
            except Exception:  # whatever it is, __call__ meets it again and reports it
                self._values[line] = None
        return self._values[line]

    def _changed(self, override: Override) -> tuple[list[str], str, Any] | None:
        key = override.key_or_group
        *parents, last = key.split(".")
        nested = isinstance(override.value(), dict) or OmegaConf.is_dict(OmegaConf.select(self._config, key))
        group = OmegaConf.select(self._config, ".".join(parents)) if parents else self._config
        if nested or not OmegaConf.is_dict(group):
            return None
        new = last not in group and not OmegaConf.is_missing(group, last)
        apply(override, self._config)
        value = OmegaConf.select(self._config, key, throw_on_missing=True)
        if new:  # it was added with +, without which other words cannot set it
            with open_dict(group):
                del group[last]
        return parents, last, OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def apply(override: Override, config: DictConfig) -> None:
    """Set, add or delete a key, as Hydra does after it has composed the groups, except that + also sets a key that is
    already there: only some of a sweep's options may have it."""
    if override.is_add():
        override = replace(override, type=OverrideType.FORCE_ADD)
    ConfigLoaderImpl._apply_overrides_to_config([override], config)
