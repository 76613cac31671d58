"""Checks of a config's values, and across its keys, before anything is built."""

import difflib
from math import isfinite
from typing import Any

from omegaconf import MISSING, DictConfig

from fedexp.config.bounds import check_values
from fedexp.config.constructors import GIVEN, GROUPS, PARTS, check_arguments, located, of_fedexp
from fedexp.config.schema import SECTIONS, Evaluate, Settings, resolved
from fedexp.config.settings import Hardware
from fedexp.errors import ConfigError, nearest, require

# Numbers in every finished run's result.json; an algorithm and its parts may add others.
_IN_RESULTS = (
    "rounds", "final_accuracy", "best_accuracy", "best_round", "accuracy_last10", "samples_per_second", "bytes_up",
    "bytes_down", "seconds", "emd", "seed",
)  # fmt: skip

_LARGEST = 1e30  # its products with learning rates and the like still have room in float32, up to 3.4e38


def check(config: DictConfig) -> None:
    """Raise ConfigError for any value or combination that cannot work on this machine, before anything is built."""
    plain = resolved(config)
    check_resolved(plain)
    Hardware(**plain["hardware"]).check_machine()


def check_resolved(plain: dict[str, Any]) -> None:
    """`check` for any machine, of a config whose keys are those of the schema, as plain values, resolved."""
    _check_plain(plain, "")
    check_values(Settings, plain, "")
    cohort, clients = plain["clients_per_round"], plain["clients"]
    require(cohort <= clients, "clients_per_round", cohort, f"must be at most clients={clients}")
    for target in plain["targets"]:
        fraction = isinstance(target, int | float) and 0 < target <= 1
        require(fraction, "targets", target, "must be a fraction in (0, 1], such as 0.8")
    _check_metric(plain)
    for name, kind in SECTIONS.items():
        kind(**plain[name])
    for group in (*GROUPS, *PARTS, "tracking"):
        check_arguments(group, plain[group], GIVEN.get(group, set()))
    _check_sizes(plain)
    _check_measures(plain)
    _check_partition(plain)


def _check_metric(config: dict[str, Any]) -> None:
    """Algorithms and parts may add other numbers to a result, so a name that is only unlike all of these is left to the
    first trial of a search."""
    metric, costs = config["metric"], ("rounds_to", "simulated_seconds_to")
    if metric is None or metric in _IN_RESULTS:
        return
    cost = metric.partition(".")[0]
    reached = [f"{cost}.{target}" for target in config["targets"]]
    named = cost not in costs or metric in reached
    require(named, "metric", metric, f"names none of the targets; {nearest(metric, reached)}")
    own = not config["algorithm"]["_target_"].startswith("fedexp.")
    close = [] if own else difflib.get_close_matches(metric, _IN_RESULTS, n=1, cutoff=0.75)
    require(not close, "metric", metric, f"is not a number in result.json; {nearest(metric, _IN_RESULTS)}")


def _check_plain(value: Any, key: str) -> None:
    """Raise ConfigError for a value that is missing, and for a number that no setting can have: not finite, or of more
    than 63 bits."""
    if isinstance(value, dict):
        for name, each in value.items():
            _check_plain(each, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            _check_plain(each, key)
    elif value == MISSING:
        raise ConfigError(key, None, "must be given")
    elif isinstance(value, float):
        require(isfinite(value), key, value, "must be finite")
    elif isinstance(value, int):
        require(abs(value) < 2**63, key, value, "must be a number of at most 63 bits")


def _check_sizes(config: dict[str, Any]) -> None:
    """Raise ConfigError for a number that is too large for the single precision in which a run trains. One's own
    algorithms and parts may have any."""
    if config["hardware"]["precision"] == "float64":
        return
    right = f"must be at most {_LARGEST:g} in size: single precision cannot compute with more"
    for group in ("local", "algorithm", *PARTS):
        own = config[group].get("_target_", "fedexp.").startswith("fedexp.")
        for name, value in config[group].items() if own else ():
            require(not isinstance(value, float) or abs(value) <= _LARGEST, f"{group}.{name}", value, right)


def _check_measures(config: dict[str, Any]) -> None:
    for name, path in config["measures"].items():
        if path is not None:
            found = located(f"measures.{name}", path)
            require(callable(found), f"measures.{name}", path, "must name a function, e.g. package.module.name")
    rounds = config["reference_rounds"]
    require(
        rounds is None or config["reference"] is not None, "reference_rounds", rounds,
        "there is no reference to stop; add reference=centralized, or leave this null",
    )  # fmt: skip


def _check_partition(config: dict[str, Any]) -> None:
    """The keys of `partition` that fedexp reads itself, and what `evaluate` needs of them."""
    holdout, evaluate = config["partition"].get("holdout"), config["evaluate"]
    noise, skew, seed = (of_fedexp(config, "partition", name) for name in ("noise", "quantity_skew", "seed"))
    require(seed is None or type(seed) is int, "partition.seed", seed, "must be a whole number, or null")
    require(_is_number(holdout) and 0 <= holdout < 1, "partition.holdout", holdout, "must be in [0, 1)")
    require(_is_number(noise) and 0 <= noise <= 1e12, "partition.noise", noise, "must be at least 0, and at most 1e12")
    require(
        skew is None or (_is_number(skew) and skew > 0), "partition.quantity_skew", skew, "must be above 0, or null"
    )
    default = Evaluate.on
    require(
        evaluate["clients"] != "none" or evaluate["on"] == default, "evaluate.on", evaluate["on"],
        f"no client is evaluated; add evaluate.clients=all, or leave this {default}",
    )  # fmt: skip
    require(
        holdout > 0 or evaluate["on"] != "holdout", "evaluate.on", "holdout",
        "nothing is held out; add partition.holdout=0.2, for example",
    )  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
