"""The typed schema of the config."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError

from fedexp.config import resolvers
from fedexp.config.bounds import AtLeast, OneOf, check_fields, hints
from fedexp.config.constructors import GROUPS, PARTS
from fedexp.config.settings import Hardware, Local
from fedexp.errors import ConfigError, nearest, require

# Groups that configs of earlier versions lack, and their values for such configs.
ADDED = {"system": {"name": "none", "_target_": PARTS["system"]}}


@dataclass(frozen=True)
class Evaluate:
    """every: rounds between evaluations. clients: the clients whose own models are evaluated besides the global one:
    none, a round's participants, or all. on: train, holdout or matched (fedexp/measure/clients.py)."""

    every: Annotated[int, AtLeast(1)] = 1
    clients: Annotated[str, OneOf("none", "participants", "all")] = "none"
    on: Annotated[str, OneOf("train", "holdout", "matched")] = "matched"

    def __post_init__(self) -> None:
        check_fields(self, "evaluate")


SECTIONS: dict[str, type] = {"local": Local, "hardware": Hardware, "evaluate": Evaluate}


def _schema(settings: type) -> type:
    """A class with the same fields that OmegaConf may fill: a frozen one would make the config read-only. Its name is
    the one that it has in this module, so that configs can be pickled."""
    found = make_dataclass(f"_{settings.__name__}", [(each.name, each.type, each.default) for each in fields(settings)])
    found.__module__ = __name__
    return found


_Local, _Hardware, _Evaluate = (_schema(kind) for kind in (Local, Hardware, Evaluate))


@dataclass
class Settings:
    """Run-level keys; conf/config.yaml gives their values. The keys of a group are not fixed here: each option's file
    names a constructor and its arguments."""

    dataset: dict[str, Any] = field(default_factory=dict)
    partition: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    algorithm: dict[str, Any] = field(default_factory=dict)
    selection: dict[str, Any] = field(default_factory=dict)
    server_optimizer: dict[str, Any] = field(default_factory=dict)
    compression: dict[str, Any] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)
    system: dict[str, Any] = field(default_factory=dict)
    # Type checkers do not accept classes that are made at run time.
    hardware: _Hardware = field(default_factory=_Hardware)  # type: ignore[valid-type]
    tracking: dict[str, Any] = field(default_factory=dict)
    clients: Annotated[int, AtLeast(1)] = MISSING
    clients_per_round: Annotated[int, AtLeast(1)] = MISSING
    rounds: Annotated[int, AtLeast(1)] = MISSING
    seed: int = MISSING
    evaluate: _Evaluate = field(default_factory=_Evaluate)  # type: ignore[valid-type]
    local: _Local = field(default_factory=_Local)  # type: ignore[valid-type]
    targets: list[float] = MISSING
    measures: dict[str, str | None] = field(default_factory=dict)
    reference: Annotated[str | None, OneOf("centralized")] = MISSING
    reference_rounds: Annotated[int | None, AtLeast(1)] = MISSING
    output_root: str = MISSING
    checkpoint_seconds: Annotated[float, AtLeast(0)] = MISSING
    pictures: bool = MISSING
    artifacts_every: Annotated[int, AtLeast(0)] = MISSING
    metric: str | None = None
    paper: str | None = None
    table: dict[str, Any] = field(default_factory=dict)  # +table=NAME: a sweep of runs (fedexp/sweep/table.py)
    scale: dict[str, Any] = field(default_factory=dict)  # +scale=NAME: a sweep made smaller (fedexp/sweep/scale.py)
    sweep: str | None = None  # the multirun that a run belongs to, named by fedexp/sweep/jobs.py


ConfigStore.instance().store(name="schema", node=Settings)
resolvers.register()


def section(config: DictConfig, name: str) -> Any:
    """The Local, Hardware or Evaluate of a config. Raises ConfigError for a value out of bounds."""
    return SECTIONS[name](**_plain(config[name], resolve=True))


def resolved(config: DictConfig) -> dict[str, Any]:
    """The config as plain values. Raises ConfigError for keys that are not those of the schema, and for a value that
    refers to a key that is not there."""
    written = _plain(config, resolve=False)
    check_plain_keys(written)  # first: a key that the schema lacks may not resolve
    try:
        return _plain(config, resolve=True)
    except InterpolationResolutionError as error:
        reason = str(error).splitlines()[0].split("resolving interpolation: ")[-1]
        raise ConfigError(*_unresolved(written, error, reason), reason) from error


def _unresolved(written: Any, error: InterpolationResolutionError, reason: str) -> tuple[str, Any]:
    """The key whose own value refers to what the reason quotes, and that value. OmegaConf may name another key, such as
    a partition's name, which refers to this one."""
    for name in re.findall(r"'([^']+)'", reason):
        reference = re.compile(rf"\$\{{[^}}]*(?<!\w){re.escape(name)}\b")
        for key, value in flat(written).items():
            if isinstance(value, str) and reference.search(value):
                return key, value
    return str(error.full_key), None


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found


def _plain(config: DictConfig, resolve: bool) -> dict[str, Any]:
    """The config as nested dicts and lists, which are much faster to read."""
    found: Any = OmegaConf.to_container(config, resolve=resolve)
    return found


def check_plain_keys(config: dict[str, Any], schema: type = Settings, before: str = "") -> None:
    """Raise ConfigError for a key that the schema lacks (+ and ++ can add one, but nothing would read it), and for a
    key of the schema that has been removed (~) or has no value (???).

    The keys within groups depend on their constructors: see check_arguments.
    """
    known = hints(schema)
    for name, value in config.items():
        if name not in known:
            raise ConfigError(f"{before}{name}", value, f"no such key; {nearest(str(name), known)}")
        require(value != MISSING, f"{before}{name}", None, "must be given")
        if is_dataclass(known[name]) and isinstance(value, dict):
            check_plain_keys(value, known[name], f"{before}{name}.")
    for name in known:
        require(name in config, f"{before}{name}", None, "must be given")


def lacking(config: Any) -> list[str]:
    """The keys that a plain config from a file lacks and by which runs are named and compared. One of another version
    may lack some."""
    if not isinstance(config, dict):
        return ["all keys"]
    nodes = (*GROUPS, *PARTS, "local", "evaluate", "hardware", "measures")
    config = {**ADDED, **config}
    absent = [name for name in nodes if not isinstance(config.get(name), dict)]
    absent += [f"{group}._target_" for group in (*GROUPS, *PARTS)
               if group not in absent and not isinstance(config[group].get("_target_"), str)]  # fmt: skip
    numbers = ("clients", "clients_per_round", "rounds", "seed")
    return absent + [name for name in numbers if not isinstance(config.get(name), int)]
