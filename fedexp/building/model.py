"""The initial model, tried out before the first round."""

import logging

import torch
from omegaconf import DictConfig
from torch import nn

from fedexp import tree
from fedexp.building.construct import REFUSALS, construct, in_short
from fedexp.config.constructors import of_fedexp
from fedexp.config.schema import section
from fedexp.errors import ConfigError, require
from fedexp.models import Model, pretrained, trial
from fedexp.models.convolution import channels_last
from fedexp.models.purify import refuse_complex
from fedexp.randomness import key, seeded
from fedexp.tree import Params
from fedexp.world import World

log = logging.getLogger(__name__)


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
    except REFUSALS as error:
        raise ConfigError("model._target_", target, f"cannot be used ({in_short(error)})") from error
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
    except REFUSALS as error:
        raise ConfigError("model._target_", target, f"cannot be trained ({in_short(error)})") from error
    try:
        if hardware.mechanism(world.device) == "vectorized":
            trial.vectorize(model, x)
    except REFUSALS as error:
        right = f"cannot vectorize this model ({in_short(error)}); use hardware.engine=workers"
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
    except REFUSALS as error:
        right = f"cannot take examples of shape {list(x.shape)}{tokens} ({in_short(error)})"
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
        raise ConfigError(key, target, f"{right}.flatten(1) ({in_short(error)})") from error
