"""From a checked config to the objects of a run: data, context, algorithm, measures, reference, tracker."""

import difflib
import inspect
import logging
import traceback
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object
from omegaconf import DictConfig
from torch import nn

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg, Stage
from fedexp.config.bounds import hints
from fedexp.config.constructors import PARTS, arguments, of_fedexp
from fedexp.config.schema import section
from fedexp.data.dataset import Dataset, are_tokens
from fedexp.engine import Context
from fedexp.errors import ConfigError, require
from fedexp.measure import Measure
from fedexp.measure.reference import Reference
from fedexp.models import Model, pretrained, trial
from fedexp.models.convolution import channels_last
from fedexp.models.purify import refuse_complex
from fedexp.partition.quantity import thinned
from fedexp.randomness import generator, key, seeded
from fedexp.record.tracker import Tracker
from fedexp.tree import Params
from fedexp.world import Noise, World

log = logging.getLogger(__name__)

_MOST_STEPS = 10**6  # local steps of a vectorized round, whose batches are laid out before it begins
# What a constructor may raise for values that it did not check and cannot work with.
_REFUSALS = (
    ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, LookupError, MemoryError, OSError,
    AssertionError, ImportError, InstantiationException,
)  # fmt: skip
_KINDS = {  # what the groups' constructors must give
    "dataset": Dataset, "partition": list, "model": nn.Module, "algorithm": FedAvg, "tracking": Tracker,
    **{part: get_object(standard) for part, standard in PARTS.items()},
}  # fmt: skip


def construct(node: DictConfig, **given: Any) -> Any:
    """Call a group's constructor with its keys and with the arguments that fedexp gives. Raises ConfigError where that
    fails, or returns something of the wrong kind."""
    group, target = str(node._key()), node["_target_"]
    try:
        found, kind = _call(group, arguments(node), target, given), _KINDS[group]
        right = f"must be, or return, a {kind.__module__}.{kind.__name__} (or one of a subclass)"
        require(isinstance(found, kind), f"{group}._target_", target, right)
        return found
    except ConfigError:
        raise
    except _REFUSALS as error:
        raise ConfigError(group, node.get("name"), f"cannot be built from its keys ({_in_short(error)})") from error


def _in_short(error: Exception) -> str:
    """What an error says and the place where it was raised."""
    said, where = " ".join(str(error).split()), traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {said}, {Path(where.filename).name}:{where.lineno}"


def _call(group: str, keys: dict[str, Any], target: str, given: dict[str, Any]) -> Any:
    """A constructor's result. Keys that are constructors themselves (algorithm.clustering) are called first, with those
    of the given arguments that they accept. Errors name the full key."""
    own = {}
    for name, value in keys.items():
        if isinstance(value, dict) and "_target_" in value:
            inner = {key: each for key, each in value.items() if key not in ("name", "_target_")}
            accepted = inspect.signature(get_object(value["_target_"])).parameters
            try:
                shared = {key: each for key, each in given.items() if key in accepted}
                own[name] = _call(f"{group}.{name}", inner, value["_target_"], shared)
            except ConfigError as error:
                outer, _, last = error.key.partition(".")
                told = outer != group or error.key.startswith(f"{group}.{name}.")
                raise ConfigError(error.key if told else f"{group}.{name}.{last}", error.value, error.right) from error
        else:
            own[name] = value
    constructor = get_object(target)
    types = hints(constructor)
    own = {name: str(value) if types.get(name) is str else value for name, value in own.items()}  # a folder named 2024
    return constructor(**own, **given)


def build_dataset(config: DictConfig) -> Dataset:
    """All examples, on the CPU. Where the CPU also trains, the training examples are in channels-last memory."""
    with seeded(key(0, "dataset")):  # runs of all seeds share it
        dataset: Dataset = construct(config.dataset)
    on_cpu = section(config, "hardware").torch_device.type == "cpu"
    return replace(dataset, train_x=channels_last(dataset.train_x)) if on_cpu else dataset


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


def build_world(config: DictConfig, dataset: Dataset) -> World:
    """Partition the examples, hold some out, and move them to the device."""
    hardware = section(config, "hardware")
    count = len(dataset.train_y)
    require(
        config.clients <= count, "clients", config.clients,
        f"there are only {count} training examples to share; use at most as many clients",
    )  # fmt: skip
    with seeded(key(config.seed, "partition")):
        parts = construct(config.partition, dataset=dataset, clients=config.clients, seed=config.seed)
    for part in parts:
        ids = isinstance(part, torch.Tensor) and part.dim() == 1 and part.dtype == torch.int64
        require(
            ids and (len(part) == 0 or bool(part.min() >= 0 and part.max() < count)),
            "partition._target_", config.partition["_target_"], f"must give int64 tensors of ids from 0 to {count - 1}",
        )  # fmt: skip
    sizes = torch.tensor([len(part) for part in parts])
    right = f"must give the ids of each of the {config.clients} clients; it gave those of {len(parts)}"
    require(len(parts) == config.clients, "partition._target_", config.partition["_target_"], right)
    require(
        bool((sizes > 0).all()), "clients", config.clients,
        f"clients left without examples by the partition: {int((sizes == 0).sum())}; use fewer clients or less skew",
    )  # fmt: skip
    skew, holdout, noise = (of_fedexp(config, "partition", name) for name in ("quantity_skew", "holdout", "noise"))
    if skew is not None:
        parts = thinned(parts, dataset.train_y, skew, config.seed)
    train, held = hold_out(parts, float(holdout), config.seed)
    world = World(
        dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y,
        torch.cat(train), torch.tensor([len(part) for part in train]),
        dataset.classes, dataset.transform, hardware.dtype, hardware.memory_device,
        torch.cat(held), torch.tensor([len(part) for part in held]),
        noise=noise_by_client(dataset, parts, noise, config.seed) if noise else None, checksum=dataset.checksum,
    )  # fmt: skip
    return world.to(hardware.torch_device)


def noise_by_client(dataset: Dataset, parts: list[torch.Tensor], noise: float, seed: int) -> Noise:
    """Noise that grows from none for the first client to a deviation of `noise` for the last, in equal steps: the
    feature skew of NIID-Bench (Li et al., ICDE 2022), as its published code has it.

    Raises ConfigError where an example belongs to several clients, and so has no deviation of its own, or is of tokens.
    """
    right = f"needs numeric inputs, and {dataset.name} has tokens"
    require(not are_tokens(dataset.train_x), "partition.noise", noise, right)
    held = torch.cat(parts)
    right = "this partition shares examples between clients; use another partition, or 0"
    require(len(held.unique()) == len(held), "partition.noise", noise, right)
    require(len(parts) > 1, "partition.noise", noise, "grows from client to client; use at least 2 clients")
    deviation = torch.zeros(len(dataset.train_y))
    for client, part in enumerate(parts):
        deviation[part] = noise * client / (len(parts) - 1)
    return Noise(deviation, key(seed, "feature noise") >> 1)


def hold_out(parts: list[torch.Tensor], share: float, seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Each client's example ids for training, and those held out: `share` of them, at least one and never all."""
    if share == 0:
        return parts, [part[:0] for part in parts]
    together = torch.cat(parts)
    require(
        len(together.unique()) == len(together), "partition.holdout", share,
        "this partition shares examples between clients, who train on what others hold out; use another one, or 0",
    )  # fmt: skip
    train, held = [], []
    for client, part in enumerate(parts):
        order = part[torch.randperm(len(part), generator=generator(seed, "holdout", client))]
        count = min(len(part) - 1, max(1, round(share * len(part))))
        require(
            count > 0, "partition.holdout", share,
            f"client {client} has one example, of which none can be held out; use fewer clients",
        )  # fmt: skip
        held.append(order[:count])
        train.append(part[~torch.isin(part, order[:count])])
    return train, held


def build_model(config: DictConfig, world: World) -> Model:
    """The initial model on the device, which for one seed is the same for every algorithm. Its weights are random, or
    those of the file model.pretrained in all layers below the head."""
    net, target = _new_net(config, world), config.model["_target_"]
    source = of_fedexp(config, "model", "pretrained")
    if source is not None:
        pretrained.load(net, str(source))
    try:
        refuse_complex(net)  # while its entries are as they were made
        model = Model(net.to(world.device, world.dtype))
    except TypeError as error:  # a layer that cannot be used here
        raise ConfigError("model._target_", target, str(error)) from error
    except _REFUSALS as error:
        raise ConfigError("model._target_", target, f"cannot be used ({_in_short(error)})") from error
    model.pretrained = source
    require(bool(model.weights), "model._target_", target, "has no weights to train")
    _try_out(model, world, "model._target_", target)
    if not target.startswith("fedexp."):  # tests compare fedexp's own
        _compare(net, world, config)
    return model


def _new_net(config: DictConfig, world: World) -> nn.Module:
    name = key(config.seed, "model")
    with seeded(name, held=True):
        torch.cuda.manual_seed_all(name)  # for weights that a constructor makes on a GPU
        net: nn.Module = construct(config.model, shape=world.shape, classes=world.classes)
    return net


def _compare(net: nn.Module, world: World, config: DictConfig) -> None:
    """Raise ConfigError for a model that would not train here as in PyTorch, and warn of what it would leave out. Two
    other nets are compared, so that nothing of the comparison is left in the run's own."""
    target, hardware, x = config.model["_target_"], section(config, "hardware"), world.prepare_test(slice(4))
    x = x.cpu() if world.tokens else x
    x = torch.cat([x, x]) if len(x) == 1 else x
    # Copies would not do: their hooks and closures would still be those of the run's net.
    nets = [net, _new_net(config, world), _new_net(config, world)]
    if trial.share(nets):
        log.warning("model: its constructor gives parts of an earlier model again, so that it cannot be tried out")
        return
    for entry in (*nets[1].parameters(), *nets[2].parameters()):
        entry.data = entry.data.clone()  # a constructor may give the same memory each time
    model, plain = Model(nets[1].to(x.device, world.dtype)), nets[2]
    try:
        unused, asks = trial.compare(model, plain, x, target)
    except ConfigError:
        raise
    except _REFUSALS as error:
        raise ConfigError("model._target_", target, f"cannot be trained ({_in_short(error)})") from error
    try:
        if hardware.mechanism(world.device) == "vectorized":
            trial.vectorize(model, x)
    except _REFUSALS as error:
        right = f"cannot vectorize this model ({_in_short(error)}); use hardware.engine=workers"
        raise ConfigError("hardware.engine", hardware.engine, right) from error
    if asks:
        log.warning(
            "model: what it does only where self.training holds, such as F.dropout, is left out, since that is false "
            "here even in training; use layers such as nn.Dropout"
        )
    if unused and config.local.weight_decay:
        log.warning(
            "model: no gradient of the loss reaches %s; unless the algorithm uses them, local.weight_decay still "
            "shrinks them, which it would not in PyTorch", ", ".join(unused),
        )  # fmt: skip


def _try_out(model: Model, world: World, key: str, target: str) -> None:
    """Raise ConfigError unless a model gives a logit for each class, also for the data set's largest token. Tokens are
    tried on the CPU: on a GPU one that an embedding lacks ends the process."""
    params, x, tokens = model.params(), world.prepare_test(slice(2)), ""
    if world.tokens:
        largest = int(max(world.x.max(), world.test_x.max()))
        params = {name: value.cpu() for name, value in params.items()}
        x, tokens = torch.full_like(x, largest, device="cpu"), f" with tokens up to {largest}"
    try:
        with torch.no_grad():
            logits = model(params, x, training=False)
    except _REFUSALS as error:
        right = f"cannot take examples of shape {list(x.shape)}{tokens} ({_in_short(error)})"
        raise ConfigError(key, target, right) from error
    _try_memory_format(model, params, x, key, target)
    shape = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    wanted = [len(x), world.classes]
    require(shape == wanted, key, target, f"must give logits of shape {wanted} for {len(x)} examples; it gave {shape}")


def _try_memory_format(model: Model, params: Params, x: torch.Tensor, key: str, target: str) -> None:
    """Raise ConfigError for a model that cannot take images as they lie in memory."""
    if x.dim() != 4:
        return
    try:
        with torch.no_grad():
            model(tree.apply(channels_last, params), channels_last(x), training=False)
    except RuntimeError as error:
        right = "images and weights lie in channels-last memory here, which .view() may not take; use .reshape() or "
        raise ConfigError(key, target, f"{right}.flatten(1) ({_in_short(error)})") from error


def build_algorithm(config: DictConfig) -> FedAvg:
    """The algorithm with its parts, which are those of the config. Where its class has a default of its own for a part,
    and the config has the usual one, a warning says that the class's has no effect."""
    algorithm: FedAvg = construct(config.algorithm, **{part: construct(config[part]) for part in PARTS})
    standard = FedAvg().parts
    for each in (algorithm, *algorithm.parts.values()):
        for name, hook in _misspelt(type(each)):
            log.warning("%s.%s is no hook, and nothing calls it: did you mean %s?", type(each).__name__, name, hook)
    for field in fields(algorithm):
        given, default = algorithm.parts.get(field.name), field.default
        if given is not None and given == standard[field.name] != default and default is not MISSING:
            log.warning(
                "%s has %r for its default %s, and this run has %r: parts are chosen by the config, as in %s=OPTION",
                type(algorithm).__name__, default, field.name, given, field.name,
            )  # fmt: skip
    return algorithm


def _misspelt(kind: type) -> Iterator[tuple[str, str]]:
    """Names in a user's class that are nearly those of hooks, and these hooks."""
    parents = (each for each in kind.__mro__ if each.__module__.startswith("fedexp."))
    known = [name for name in dir(next(parents, object)) if not name.startswith("_")]
    own = (each for each in kind.__mro__ if not each.__module__.startswith("fedexp.") and each is not object)
    functions = {name: value for each in own for name, value in vars(each).items() if callable(value)}
    codes = filter(None, (getattr(value, "__code__", None) for value in functions.values()))
    called = {name for code in codes for name in code.co_names}
    for name in functions:
        if name not in known and name not in called and not name.startswith("_"):
            yield from ((name, hook) for hook in difflib.get_close_matches(name, known, n=1, cutoff=0.8))


def build_stages(config: DictConfig, ctx: Context) -> list[Stage]:
    """The stages of a run of the algorithm, checked. An algorithm knows its parts by their classes; where it refuses
    one, the error names what the config chose instead."""
    algorithm = build_algorithm(config)
    try:
        stages = algorithm.stages(ctx)
        for stage in stages:
            stage.algorithm.check(stage.context)
        return stages
    except ConfigError as error:
        option = config[error.key].get("name") if error.key in PARTS else None
        raise ConfigError(error.key, option or error.value, error.right) from error


def build_measures(config: DictConfig) -> list[Measure]:
    """The functions that the config's `measures` names, in its order."""
    return [get_object(path) for path in config.measures.values() if path is not None]


def build_reference(config: DictConfig, ctx: Context, stopped: Callable[[], bool]) -> Reference:
    """The reference of a run whose last stage trains in `ctx`."""
    last = config.rounds if config.reference_rounds is None else min(config.rounds, config.reference_rounds)
    return Reference(0 if config.reference is None else last, ctx, stopped)


def build_tracker(config: DictConfig) -> Tracker:
    return construct(config.tracking)
