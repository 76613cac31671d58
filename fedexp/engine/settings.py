"""Settings of local training and of the hardware that it runs on."""

import os
from dataclasses import dataclass
from math import inf

import torch

from fedexp.errors import ConfigError, require


@dataclass
class Local:
    """How a client trains: epochs over its examples, or a number of steps where `steps` is given.

    lr_decay multiplies the learning rate once a round. max_grad_norm clips the gradient that is applied.
    drop_last leaves out an epoch's last partial batch (a client with fewer examples than one batch still
    trains on them). optimizer: sgd or adam, started afresh every round.
    """

    epochs: int = 5
    steps: int | None = None
    batch_size: int = 50
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    max_grad_norm: float | None = None
    drop_last: bool = False
    optimizer: str = "sgd"

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        require(self.epochs >= 1, "local.epochs", self.epochs, "must be at least 1")
        require(self.steps is None or self.steps >= 1, "local.steps", self.steps, "must be at least 1, or null")
        require(self.batch_size >= 1, "local.batch_size", self.batch_size, "must be at least 1")
        require(0 < self.lr < inf, "local.lr", self.lr, "must be above 0 and finite")
        require(0 <= self.momentum < 1, "local.momentum", self.momentum, "must be in [0, 1)")
        require(0 <= self.weight_decay < inf, "local.weight_decay", self.weight_decay, "must be at least 0 and finite")
        require(0 < self.lr_decay <= 1, "local.lr_decay", self.lr_decay, "must be in (0, 1]")
        norm = self.max_grad_norm
        require(norm is None or 0 < norm < inf, "local.max_grad_norm", norm, "must be above 0 and finite, or null")
        require(self.optimizer in ("sgd", "adam"), "local.optimizer", self.optimizer, "must be sgd or adam")

    def rate(self, round: int) -> float:
        """The learning rate of a round (from 0)."""
        return self.lr * self.lr_decay**round

    def schedule(self, size: int) -> tuple[int, int]:
        """(batches an epoch, batches a round) of a client with `size` examples."""
        whole = size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        epoch = max(1, whole)
        return epoch, self.steps if self.steps is not None else epoch * self.epochs

    def examples(self, size: int) -> int:
        """How many examples a client with `size` of them goes through in a round."""
        epoch, steps = self.schedule(size)
        whole = min(size, epoch * self.batch_size)  # an epoch's
        return steps // epoch * whole + min(steps % epoch * self.batch_size, whole)


_PRECISIONS = ("float32", "tf32", "bfloat16", "float64")


@dataclass
class Hardware:
    """device: auto, cpu, cuda or cuda:N. precision: float32, tf32 (NVIDIA's, for products and convolutions), bfloat16
    (autocast) or float64. engine: apart (a worker process a core), together (the cohort as one stack) or
    auto. workers: processes of `apart`, auto = one a core. clients_at_once: rows of `together`, auto =
    the whole cohort, halved whenever memory runs out. convolution: auto (large ones in tiles on a CPU in
    float32, which is faster and rounds a little differently) or direct. client_memory: where algorithms keep what
    every client remembers from round to round: device, or cpu, from where participants' rows come and go each round.
    """

    device: str = "auto"
    precision: str = "float32"
    engine: str = "auto"
    workers: str = "auto"
    clients_at_once: str = "auto"
    convolution: str = "auto"
    client_memory: str = "device"

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work on this machine."""
        require(
            self.device in ("auto", "cpu") or self.device.split(":")[0] == "cuda",
            "hardware.device", self.device, "must be auto, cpu, cuda or cuda:N",
        )  # fmt: skip
        if self.device.startswith("cuda"):
            count = torch.cuda.device_count()
            index = self.device.partition(":")[2] or "0"
            require(count > 0, "hardware.device", self.device, "no CUDA device here; use cpu or auto")
            require(
                index.isdigit() and int(index) < count,
                "hardware.device", self.device, f"this machine has cuda:0 to cuda:{count - 1}",
            )  # fmt: skip
        require(
            self.precision in _PRECISIONS, "hardware.precision", self.precision,
            f"must be one of {', '.join(_PRECISIONS)}",
        )  # fmt: skip
        require(
            self.engine in ("auto", "apart", "together"), "hardware.engine", self.engine,
            "must be auto, apart or together",
        )  # fmt: skip
        require(
            self.convolution in ("auto", "direct"), "hardware.convolution", self.convolution,
            "must be auto or direct",
        )  # fmt: skip
        require(
            self.client_memory in ("device", "cpu"), "hardware.client_memory", self.client_memory,
            "must be device or cpu",
        )  # fmt: skip
        for name in ("workers", "clients_at_once"):
            value = str(getattr(self, name))
            if value != "auto" and not (value.isdigit() and int(value) > 0):
                raise ConfigError(f"hardware.{name}", value, "must be auto or a number of at least 1")

    @property
    def torch_device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    @property
    def memory_device(self) -> torch.device | None:
        return torch.device("cpu") if self.client_memory == "cpu" else None

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def cores(self) -> int:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @property
    def worker_count(self) -> int:
        return self.cores if self.workers == "auto" else int(self.workers)
