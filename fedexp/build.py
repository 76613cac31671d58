"""From a checked config to the things of a run: data, world, model, algorithm, tracker."""

import traceback
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from fedexp.algorithms.fedavg import FedAvg
from fedexp.data import Dataset
from fedexp.errors import ConfigError, require
from fedexp.models import Model
from fedexp.randomness import key
from fedexp.record.tracker import Tracker
from fedexp.settings import arguments
from fedexp.world import World

# What a constructor raises for values that it cannot work with and did not check.
_REFUSALS = (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError, MemoryError, InstantiationException)


def construct(node: DictConfig, **given: Any) -> Any:
    """Call a group's constructor with its keys and what fedexp gives. Raises ConfigError where that fails."""
    try:
        own = {
            name: instantiate(_part(value)) if isinstance(value, dict) and "_target_" in value else value
            for name, value in arguments(node).items()
        }
        return get_object(node["_target_"])(**own, **given)
    except ConfigError:
        raise
    except _REFUSALS as error:
        refusal = error.__cause__ if isinstance(error, InstantiationException) and error.__cause__ else error
        if isinstance(refusal, ConfigError):
            raise refusal from None
        said, where = " ".join(str(refusal).split()), traceback.extract_tb(refusal.__traceback__)[:2][-1]
        reason = f"{type(refusal).__name__}: {said}, {Path(where.filename).name}:{where.lineno}"
        raise ConfigError(str(node._key()), node.get("name"), f"cannot be built of its keys ({reason})") from refusal


def _part(node: dict[str, Any]) -> dict[str, Any]:
    """A constructor within a group, without the `name` that it has as a group's choice of its own."""
    return {name: value for name, value in node.items() if name != "name"}


def build_dataset(config: DictConfig) -> Dataset:
    """All examples, on the CPU."""
    return construct(config.dataset)


def build_world(config: DictConfig, dataset: Dataset) -> World:
    """Partition the examples and move them to the device."""
    hardware = OmegaConf.to_object(config.hardware)
    parts = construct(config.partition, dataset=dataset, clients=config.clients, seed=config.seed)
    sizes = torch.tensor([len(part) for part in parts])
    require(
        len(parts) == config.clients and bool((sizes > 0).all()), "clients", config.clients,
        f"the partition left {int((sizes == 0).sum())} clients without examples; use fewer clients or less skew",
    )  # fmt: skip
    world = World(
        dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y, torch.cat(parts).long(), sizes,
        dataset.classes, dataset.transform, hardware.dtype, hardware.memory_device,
    )  # fmt: skip
    return world.to(hardware.torch_device)


def build_model(config: DictConfig, world: World) -> Model:
    """The freshly initialised model, on the device: the same for a seed whatever the algorithm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(config.seed, "model"))
        net = construct(config.model, shape=world.shape, classes=world.classes)
    return Model(net.to(world.device, world.dtype))


def build_algorithm(config: DictConfig) -> FedAvg:
    return construct(
        config.algorithm, clients_per_round=config.clients_per_round, local=OmegaConf.to_object(config.local)
    )


def build_tracker(config: DictConfig) -> Tracker:
    return construct(config.tracking)
