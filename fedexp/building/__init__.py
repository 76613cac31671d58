"""From a checked config to the objects of a run: data, context, algorithm, measures, reference, tracker."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import MISSING, fields

from hydra.utils import get_object
from omegaconf import DictConfig

from fedexp.algorithms.fedavg import FedAvg, Stage
from fedexp.building.construct import construct
from fedexp.building.model import build_model
from fedexp.building.own import check_use_of_parts, misspelt
from fedexp.building.world import build_dataset, build_transform, build_world
from fedexp.config.constructors import PARTS
from fedexp.config.schema import section
from fedexp.data.dataset import Dataset
from fedexp.engine import Context
from fedexp.errors import ConfigError, require
from fedexp.measure import Measure
from fedexp.measure.reference import Reference
from fedexp.record.tracker import Tracker

__all__ = [
    "build_algorithm", "build_context", "build_dataset", "build_measures", "build_model", "build_reference",
    "build_stages", "build_tracker", "build_transform", "build_world", "construct",
]  # fmt: skip

log = logging.getLogger(__name__)

_MOST_STEPS = 10**6  # local steps of a vectorized round, whose batches are laid out before it begins


def build_context(config: DictConfig, dataset: Dataset) -> Context:
    """The world and the freshly initialised model on the device, and the settings of local training."""
    world = build_world(config, dataset)
    model = build_model(config, world)
    local, hardware = section(config, "local"), section(config, "hardware")
    vectorized = hardware.mechanism(world.device) == "vectorized"
    key = "epochs" if local.steps is None else "steps"
    require(
        not vectorized or local.schedule(int(world.sizes.max()))[1] <= _MOST_STEPS, f"local.{key}", getattr(local, key),
        f"must make at most {_MOST_STEPS} steps a round with hardware.engine=vectorized; use hardware.engine=workers",
    )  # fmt: skip
    return Context(model, world, local, hardware, config.clients_per_round, config.rounds, config.seed)


def warn_of_hardware(ctx: Context) -> None:
    """Name a setting that is for the other mechanism, and has no effect."""
    vectorized = ctx.hardware.mechanism(ctx.world.device) == "vectorized"
    name = "workers" if vectorized else "clients_at_once"
    value, how = getattr(ctx.hardware, name), "vectorized, in one process" if vectorized else "in workers"
    if value != "auto":
        log.warning("hardware.%s=%s has no effect: cohorts train %s", name, value, how)


def build_algorithm(config: DictConfig) -> FedAvg:
    """The algorithm with its parts, which are those of the config. Where one's own class has a default of its own for a
    part, and the config has the usual one, a warning says that the class's has no effect; options of fedexp's own
    choose their parts in YAML."""
    algorithm: FedAvg = construct(config.algorithm, **{part: construct(config[part]) for part in PARTS})
    standard, is_own = FedAvg().parts, not type(algorithm).__module__.startswith("fedexp.")
    for each in (algorithm, *algorithm.parts.values()):
        for name, hook in misspelt(type(each)):
            log.warning("%s.%s is no hook, and nothing calls it: did you mean %s?", type(each).__name__, name, hook)
    for field in fields(algorithm):
        hides = callable(getattr(FedAvg, field.name, None)) or field.name in ("review", "name")
        right = f"{type(algorithm).__name__} has a field of this name, which is that of a hook or of the run; rename it"
        value = getattr(algorithm, field.name)
        require(not hides or field.name in standard, f"algorithm.{field.name}", value, right)
        given, default = algorithm.parts.get(field.name), field.default
        if is_own and given is not None and given == standard[field.name] != default and default is not MISSING:
            log.warning(
                "%s has %r for its default %s, and this run has %r: parts are chosen by the config, as in %s=OPTION",
                type(algorithm).__name__, default, field.name, given, field.name,
            )  # fmt: skip
    return algorithm


def build_stages(config: DictConfig, ctx: Context) -> list[Stage]:
    """The stages of a run of the algorithm, checked. An algorithm knows its parts by their classes; where it refuses
    one, the error names what the config chose instead."""
    algorithm = build_algorithm(config)
    try:
        stages = algorithm.stages(ctx)
        for stage in stages:
            stage.algorithm.check(stage.context)
            check_use_of_parts(stage.algorithm)
        return stages
    except ConfigError as error:
        option = config[error.key].get("name") if error.key in PARTS else None
        raise ConfigError(error.key, option or error.value, error.right) from error


def build_measures(config: DictConfig) -> dict[str, Measure]:
    """The functions that the config's `measures` names, in its order, by their keys there."""
    named = {f"measures.{name}": path for name, path in config.measures.items() if path is not None}
    found = {key: get_object(path) for key, path in named.items()}
    for key, measure in found.items():
        try:
            inspect.signature(measure).bind(None)
        except TypeError as error:
            right = f"must take one argument, a fedexp.round.Round ({error})"
            raise ConfigError(key, named[key], right) from error
        except ValueError:  # some callables do not tell what they take
            continue
    return {key.removeprefix("measures."): measure for key, measure in found.items()}


def build_reference(config: DictConfig, ctx: Context, stopped: Callable[[], bool]) -> Reference:
    """The reference of a run whose last stage trains in `ctx`."""
    last = config.rounds if config.reference_rounds is None else min(config.rounds, config.reference_rounds)
    return Reference(0 if config.reference is None else last, ctx, stopped)


def build_tracker(config: DictConfig) -> Tracker:
    return construct(config.tracking)
