"""The typed schema of the config, the checks across keys, and the fingerprint of a run."""

import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from fedexp.engine import Hardware, Local
from fedexp.errors import ConfigError, nearest, require

GROUPS = ("dataset", "partition", "model", "algorithm")  # each names a constructor in _target_
GIVEN = {  # what fedexp passes to each constructor besides the keys of its group
    "dataset": set(),
    "partition": {"dataset", "clients", "seed"},
    "model": {"shape", "classes"},
    "algorithm": {"clients_per_round", "local"},
}


@dataclass
class Measures:
    """What is measured besides what every run measures. reference: null, or centralized (reference.py).
    reference_rounds: stop it after so many rounds, the last of which is evaluated; null: never. The first
    synchronisation is what the paper's figures need, and costs one round.
    """

    reference: str | None = None
    reference_rounds: int | None = None

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        require(
            self.reference in (None, "centralized"), "measures.reference", self.reference, "must be null or centralized"
        )
        rounds = self.reference_rounds
        require(rounds is None or rounds >= 1, "measures.reference_rounds", rounds, "must be at least 1, or null")
        require(
            rounds is None or self.reference is not None, "measures.reference_rounds", rounds,
            "there is no reference to stop; add measures.reference=centralized, or leave this null",
        )  # fmt: skip


@dataclass
class Settings:
    """Run-level keys. The groups are free: each file names its constructor and that one's arguments."""

    dataset: dict[str, Any] = field(default_factory=dict)
    partition: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    algorithm: dict[str, Any] = field(default_factory=dict)
    hardware: Hardware = field(default_factory=Hardware)
    tracking: dict[str, Any] = field(default_factory=dict)
    clients: int = 100
    clients_per_round: int = 10
    rounds: int = 100
    seed: int = 0
    evaluate_every: int = 1
    local: Local = field(default_factory=Local)
    targets: list[float] = field(default_factory=list)
    measures: Measures = field(default_factory=Measures)
    evaluate_clients: str = "none"
    output_root: str = "outputs"
    checkpoint_seconds: float = 30.0
    exhibit_every: int = 0
    paper: str | None = None
    table: dict[str, Any] = field(default_factory=dict)  # +table=NAME: a sweep of runs (fedexp/table.py)
    scale: dict[str, Any] = field(default_factory=dict)  # +scale=NAME: a sweep made smaller (fedexp/scale.py)


ConfigStore.instance().store(name="schema", node=Settings)


def choose(value: Any, table: dict[Any, Any], *otherwise: Any) -> Any:
    """`${choose:${dataset.name},{fmnist:204},231}` in a YAML file: a constant that depends on another choice.

    Without a last value, a choice that the table lacks is an error.
    """
    if value in table:
        return table[value]
    if not otherwise:
        known = ", ".join(map(str, table))
        raise ValueError(f"there is no value for {value}, only for {known}; give this key yourself")
    return otherwise[0]


def called(target: str | None) -> str:
    """`${called:${._target_}}`: what an own class or function, given as package.module.name, is called."""
    return (target or "own").rsplit(".", 1)[-1]


OmegaConf.register_new_resolver("choose", choose, replace=True)
OmegaConf.register_new_resolver("called", called, replace=True)


def check(config: DictConfig) -> None:
    """Raise ConfigError for any value or combination that cannot work, before anything is built."""
    try:
        OmegaConf.to_container(config, resolve=True)
    except InterpolationResolutionError as error:
        reason = str(error).splitlines()[0].split("resolving interpolation: ")[-1]
        raise ConfigError(error.full_key, None, reason) from error
    at_least_one = ("clients", "clients_per_round", "rounds", "evaluate_every")
    for name in at_least_one:
        require(config[name] >= 1, name, config[name], "must be at least 1")
    require(
        config.clients_per_round <= config.clients, "clients_per_round", config.clients_per_round,
        f"must be at most clients={config.clients}",
    )  # fmt: skip
    for target in config.targets:
        require(0 < target <= 1, "targets", target, "accuracies are fractions in (0, 1]")
    whose = ("none", "participants", "all")
    require(
        config.evaluate_clients in whose,
        "evaluate_clients",
        config.evaluate_clients,
        f"must be one of {', '.join(whose)}",
    )
    require(config.checkpoint_seconds >= 0, "checkpoint_seconds", config.checkpoint_seconds, "must be at least 0")
    require(
        config.exhibit_every >= 0,
        "exhibit_every",
        config.exhibit_every,
        "must be at least 0 (0: at the end only)",
    )
    OmegaConf.to_object(config.local).check()
    OmegaConf.to_object(config.hardware).check()
    OmegaConf.to_object(config.measures).check()
    for group in GROUPS:
        check_arguments(group, config[group], GIVEN[group])
    check_arguments("tracking", config.tracking, set())
    _check_stages(config)


def _check_stages(config: DictConfig) -> None:
    """An algorithm whose last stage begins after `encoder_rounds` would otherwise end without having begun it."""
    first = config.algorithm.get("encoder_rounds")
    require(
        first is None or config.rounds > first, "rounds", config.rounds,
        f"must be above algorithm.encoder_rounds={first}, after which encoders are concatenated and a head is trained",
    )  # fmt: skip


def check_arguments(group: str, node: DictConfig, given: set[str]) -> None:
    """Raise ConfigError unless the group's keys are arguments of its constructor, each of the right type."""
    require(
        node.get("_target_") is not None,
        f"{group}._target_",
        None,
        "must name a class or function, e.g. package.module.name",
    )
    try:
        target = get_object(node["_target_"])
    except Exception as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"{group}._target_", node["_target_"], f"cannot be imported ({why})") from error
    parameters = inspect.signature(target).parameters
    own = {name: value for name, value in arguments(node).items() if name != "_partial_"}
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for name in own:
            known = set(parameters) - given
            if name not in known:
                raise ConfigError(f"{group}.{name}", own[name], f"no such key; {nearest(name, known)}")
    for name, parameter in parameters.items():
        missing = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if missing and name not in given and name not in own:
            raise ConfigError(f"{group}.{name}", None, "must be given")
    _check_types(group, target, own)
    for name, value in own.items():
        if isinstance(value, dict) and "_target_" in value:  # a constructor within the group
            later = given if value.get("_partial_") else set()  # what is given to it when it is called
            check_arguments(f"{group}.{name}", OmegaConf.create(value), later)


def _check_types(group: str, target: Any, own: dict[str, Any]) -> None:
    """OmegaConf's own conversion rules, against the constructor's type hints."""
    hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
    for name, value in own.items():
        if isinstance(value, dict) and "_target_" in value:
            continue
        try:
            schema = OmegaConf.structured(make_dataclass("Schema", [(name, hints.get(name, Any), MISSING)]))
        except OmegaConfBaseException:
            continue  # a type that YAML cannot express: the constructor's own business
        try:
            OmegaConf.merge(schema, {name: value})
        except OmegaConfBaseException as error:
            raise ConfigError(f"{group}.{name}", value, str(error).splitlines()[0]) from error


def arguments(node: DictConfig) -> dict[str, Any]:
    """The constructor's arguments of a group, as plain values (`name` and `source` are for people and reports)."""
    plain = OmegaConf.to_container(node, resolve=True)
    return {key: value for key, value in plain.items() if key not in ("name", "source", "_target_")}


# Keys that cannot change a result: where it runs, who watches, where it is written.
_WITHOUT_EFFECT = (
    "hardware",
    "tracking",
    "output_root",
    "checkpoint_seconds",
    "exhibit_every",
    "paper",
    "table",
    "scale",
)
# Keys that say which draw of one protocol a run is: reports put such runs together.
DRAWS = ("seed", "algorithm.seed", "partition.distribution")


def relevant(config: DictConfig) -> dict[str, Any]:
    """The resolved keys that can change the result or what it holds (of hardware: how numbers are rounded)."""
    plain = OmegaConf.to_container(config, resolve=True)
    kept = {key: value for key, value in plain.items() if key not in _WITHOUT_EFFECT}
    if not plain["measures"]["reference"]:
        del kept["measures"]  # a measure that is off is no part of a run's name
    kept["precision"] = plain["hardware"]["precision"]
    if (convolution := plain["hardware"].get("convolution", "auto")) != "auto":
        kept["convolution"] = convolution
    for group in GROUPS:
        kept[group].pop("name", None)
    named = "download" in kept["dataset"]  # a known data set, wherever it lies; else the folder is the data
    for key in ("source", "download", *(["root"] if named else [])):
        kept["dataset"].pop(key, None)
    if kept["dataset"].get("root") is not None:
        kept["dataset"]["root"] = str(Path(str(kept["dataset"]["root"])).expanduser().absolute())
    return kept


def fingerprint(config: DictConfig) -> str:
    """Ten hexadecimal digits that name every key that can change the result, and nothing else."""
    text = json.dumps(relevant(config), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


def data_used(dataset: Mapping[str, Any]) -> str:
    """The data set's name, and where `source` says that it is not the original, what it is: "cifar10 (JPEG copy)"."""
    name, source = str(dataset.get("name", "own")), dataset.get("source")
    return f"{name} ({source})" if source else name


def readable(config: DictConfig) -> str:
    """What a run is, for people: data set, partition, algorithm, seed."""
    names = [str(config[group].get("name", "own")) for group in ("partition", "model", "algorithm")]
    parts = [data_used(config.dataset), *names, f"seed{config.seed}"]
    return "-".join(re.sub(r"[^\w.=+-]+", "_", part).strip("_") for part in parts)
