"""The data set, and the world of clients that a partition makes of it."""

from dataclasses import replace

import torch
from omegaconf import DictConfig

from fedexp.building.construct import construct
from fedexp.config.constructors import of_fedexp
from fedexp.config.schema import section
from fedexp.data.dataset import Dataset
from fedexp.data.transform import Transform, are_tokens
from fedexp.errors import require
from fedexp.models.convolution import channels_last
from fedexp.partition.quantity import thinned
from fedexp.randomness import generator, key, seeded
from fedexp.world import Noise, World


def build_transform(config: DictConfig) -> Transform:
    """How examples are prepared."""
    transform: Transform = construct(config.dataset.transform)
    return transform


def build_dataset(config: DictConfig) -> Dataset:
    """All examples, on the CPU. Where the CPU also trains, the training examples are in channels-last memory. Raises
    ConfigError for a data set that is prepared otherwise than its config says."""
    with seeded(key(0, "dataset")):  # runs of all seeds share it
        dataset: Dataset = construct(config.dataset)
    require(
        dataset.transform == build_transform(config), "dataset._target_", config.dataset["_target_"],
        "must return a Dataset with the transform that it is given, which the keys of dataset.transform describe",
    )  # fmt: skip
    on_cpu = section(config, "hardware").torch_device.type == "cpu"
    return replace(dataset, train_x=channels_last(dataset.train_x)) if on_cpu else dataset


def build_world(config: DictConfig, dataset: Dataset) -> World:
    """Partition the examples, hold some out, and move them to the device."""
    hardware = section(config, "hardware")
    count = len(dataset.train_y)
    require(
        config.clients <= count, "clients", config.clients,
        f"there are only {count} training examples to share; use at most as many clients",
    )  # fmt: skip
    seed = config.seed if (own := of_fedexp(config, "partition", "seed")) is None else own
    with seeded(key(seed, "partition")):
        parts = construct(config.partition, dataset=dataset, clients=config.clients, seed=seed)
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
        parts = thinned(parts, dataset.train_y, skew, seed)
    train, held = hold_out(parts, float(holdout), seed)
    world = World(
        dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y,
        torch.cat(train), torch.tensor([len(part) for part in train]),
        dataset.classes, dataset.transform, hardware.dtype, hardware.memory_device,
        torch.cat(held), torch.tensor([len(part) for part in held]),
        noise=noise_by_client(dataset, parts, noise, seed) if noise else None, checksum=dataset.checksum,
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
