"""Composes groups as Hydra does, for many choices in one process: what Hydra would read and parse anew is kept."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import takewhile
from typing import Any

from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import GroupDefault, InputDefault, ResultDefault
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

_Place = tuple[str | None, str | None]  # a file, and where in the config it goes
_HYDRAS_MAP = defaults_list._create_interpolation_map


class Loader(ConfigLoaderImpl):
    """Composes what `hydra.compose` does from the same search path, in a tenth of its time: a file is read once however
    often it is chosen, the first files of a config are merged once if the config before it began with the same ones,
    and Hydra's own node, which is no part of a run's config, is left out from the beginning."""

    def __init__(self, path: ConfigSearchPath, parse: Callable[[Sequence[str]], list[Override]]) -> None:
        super().__init__(path)
        self._files = _Files(path)
        self._parse = parse
        self._last: list[_Place] = []
        self._begun: dict[tuple[_Place, ...], bytes] = {}

    def compose(self, words: Sequence[str]) -> DictConfig:
        """The config of these words, none of which may be about Hydra itself."""
        overrides = self._parse(words)
        self.validate_sweep_overrides_legal(overrides, run_mode=RunMode.RUN, from_shell=False)
        files = CachingConfigRepository(self._files)
        self._process_config_searchpath("config", overrides, files)
        with fewer_maps():
            found = defaults_list.create_defaults_list(
                files, "config", overrides, prepend_hydra=False, skip_missing=False
            )
        config = self._compose_config_from_defaults_list(found.defaults, files)
        OmegaConf.set_struct(config, True)
        self._apply_overrides_to_config(found.config_overrides, config)
        return config

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:  # fmt: skip
        places = [(each.config_path, each.package) for each in defaults]
        same = takewhile(lambda pair: pair[0] == pair[1], zip(places, self._last))
        begin = tuple(place for place, _ in same)
        self._last = places
        if not begin:
            return super()._compose_config_from_defaults_list(defaults, repo)
        if begin not in self._begun:
            merged = super()._compose_config_from_defaults_list(defaults[: len(begin)], repo)
            self._begun[begin] = pickle.dumps(merged, pickle.HIGHEST_PROTOCOL)
        config: DictConfig = pickle.loads(self._begun[begin])
        with flag_override(config, "no_deepcopy_set_nodes", True):
            for default in defaults[len(begin) :]:
                config.merge_with(self._load_single_config(default, repo).config)
        return config

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        loaded = super()._load_single_config(default, repo)
        if isinstance(loaded.config, DictConfig) and "hydra" in loaded.config:
            with open_dict(loaded.config):
                del loaded.config["hydra"]
        return loaded


class _Files(ConfigRepository):
    """The config files of a search path. A composed config is made of what was read, so each load is a copy."""

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        self._read: dict[str, bytes] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Files":
        return copy(self)  # it shares what was read, until it is given other sources

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self._read:
            loaded = super().load_config(config_path)
            if loaded is not None:
                loaded.defaults_list = [each for each in loaded.defaults_list or [] if not _is_of_hydra(each)]
            self._read[config_path] = pickle.dumps(loaded, pickle.HIGHEST_PROTOCOL)
        found: ConfigResult | None = pickle.loads(self._read[config_path])
        return found


@contextmanager
def fewer_maps() -> Iterator[None]:
    """Within this context Hydra makes the map of all choices so far, for interpolations among a file's defaults, only
    where a file has any, and puts the file's defaults into it only where one names them. Otherwise it makes the map for
    every file and puts all of them in, which takes a third of the time of composing."""
    before = defaults_list._create_interpolation_map  # within another such context, what that one has set

    def where_used(overrides: Any, defaults: list[InputDefault], self_added: bool) -> Any:
        asking = [each for each in defaults if each.is_interpolation()]
        named = any("defaults" in str(vars(each)) for each in asking)
        return _HYDRAS_MAP(overrides, defaults if named else [], self_added) if asking else None

    defaults_list._create_interpolation_map = where_used  # type: ignore[assignment]
    try:
        yield
    finally:
        defaults_list._create_interpolation_map = before


def _is_of_hydra(default: InputDefault) -> bool:
    return isinstance(default, GroupDefault) and (default.group or "").lstrip("/").startswith("hydra/")
