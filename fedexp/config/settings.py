"""Settings of local training and of the hardware that it runs on. torch is imported only where it is needed, so that
configs are composed and checked without it."""

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from fedexp.config import launch
from fedexp.config.bounds import Above, AtLeast, OneOf, Within, check_fields
from fedexp.errors import ConfigError, require

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Local:
    """How a client trains: epochs over its examples, or a number of steps where `steps` is given.

    lr_decay multiplies the learning rate after every round. max_grad_norm clips the gradient that is applied.
    drop_last leaves out an epoch's last partial batch (a client with fewer examples than one batch still
    trains on them). optimizer: sgd or adam, whose state is reset every round.
    """

    epochs: Annotated[int, Within(1, 1e9)] = 5
    steps: Annotated[int | None, Within(1, 1e18)] = None  # step numbers must fit 63 bits
    batch_size: Annotated[int, AtLeast(1)] = 10
    lr: Annotated[float, Above(0)] = 0.1
    momentum: Annotated[float, Within(0, 1, open_above=True)] = 0.0
    weight_decay: Annotated[float, AtLeast(0)] = 0.0
    lr_decay: Annotated[float, Within(0, 1, open_below=True)] = 1.0
    max_grad_norm: Annotated[float | None, Above(0)] = None
    drop_last: bool = False
    optimizer: Annotated[str, OneOf("sgd", "adam")] = "sgd"

    def __post_init__(self) -> None:
        check_fields(self, "local")
        require(
            self.optimizer == "sgd" or self.momentum == 0, "local.momentum", self.momentum,
            f"is that of sgd, and local.optimizer={self.optimizer} has its own averages; use 0",
        )  # fmt: skip

    def rate(self, number: int) -> float:
        """The learning rate of a round (from 0)."""
        return self.lr * self.lr_decay**number

    def schedule(self, size: int) -> tuple[int, int]:
        """(batches per epoch, batches per round) of a client with `size` examples."""
        whole = size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        epoch = max(1, whole)
        return epoch, self.steps if self.steps is not None else epoch * self.epochs

    def shortened(self, work: int | None) -> "Local":
        """The same settings with `work` epochs, or `work` steps where `steps` is set; None: unchanged."""
        if work is None:
            return self
        return replace(self, epochs=work) if self.steps is None else replace(self, steps=work)

    def path(self, steps: "torch.Tensor") -> "torch.Tensor":
        """Momentum SGD's effective number of steps: how far S `steps` with a constant gradient of 1 move, in units of
        the learning rate; float64, in the shape of `steps`.

        With momentum rho step s moves by 1 + rho + ... + rho^(s-1) gradients, which sums over S steps to
        (S - rho (1 - rho^S) / (1 - rho)) / (1 - rho); without, to S.
        """
        rho, steps = self.momentum, steps.double()
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)

    def examples(self, size: int) -> int:
        """How many examples a client with `size` of them goes through in a round."""
        epoch, steps = self.schedule(size)
        whole = min(size, epoch * self.batch_size)  # examples in an epoch
        return steps // epoch * whole + min(steps % epoch * self.batch_size, whole)


@dataclass(frozen=True)
class Hardware:
    """device: auto, cpu, cuda or cuda:N. precision: float32, tf32 (NVIDIA's, for products and convolutions), bfloat16
    (autocast) or float64. engine: workers (one process per core), vectorized (the cohort as one stack) or auto.
    workers: number of processes, auto = one per core, or as many as can be started; one that dies, or is stopped for 10
    seconds, is replaced, and its client trained again. Each client of a cohort trains on one thread, also without
    workers, so that their number does not change results; one that trains alone uses all cores. clients_at_once:
    clients of a vectorized cohort that train at once, auto = the whole cohort, halved whenever memory runs out.
    convolution: direct, or auto: the form measured to be fastest here (on a CPU in float32 also tiles, on a GPU also
    forms for stacks; forms differ in rounding). compile: whether torch.compile traces a vectorized cohort's local step
    as a whole, which fuses its kernels and needs a C++ compiler; that takes up to a minute for each number of clients
    that still train when others have ended, so it suits clients of equal size. cuda_graphs: whether a GPU records a
    vectorized cohort's local step once and replays it, with equal results. client_memory: where the clients' memory is
    kept between rounds: on the device, or on the cpu, from which the participants' rows are copied each round.
    """

    device: str = "auto"
    precision: Annotated[str, OneOf("float32", "tf32", "bfloat16", "float64")] = "float32"
    engine: Annotated[str, OneOf("auto", "workers", "vectorized")] = "auto"
    workers: str = "auto"
    clients_at_once: str = "auto"
    convolution: Annotated[str, OneOf("auto", "direct")] = "auto"
    compile: bool = False
    cuda_graphs: bool = True
    client_memory: Annotated[str, OneOf("device", "cpu")] = "device"

    def __post_init__(self) -> None:
        check_fields(self, "hardware")
        require(
            re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device) is not None,
            "hardware.device", self.device, "must be auto, cpu, cuda or cuda:N",
        )  # fmt: skip
        require(
            ":" not in self.device or launch.count() == 1, "hardware.device", self.device,
            "each process of a run has a GPU of its own, which torchrun chooses; use cuda",
        )  # fmt: skip
        for name in ("workers", "clients_at_once"):
            value = str(getattr(self, name))
            if value != "auto" and not (value.isdecimal() and int(value) > 0):
                raise ConfigError(f"hardware.{name}", value, "must be auto or a number of at least 1")

    def check_machine(self) -> None:
        """Raise ConfigError unless this machine has the device, and the device the precision. The machine that composes
        a sweep need not have them: a launcher may carry out the runs elsewhere."""
        if self.device.startswith("cuda"):
            import torch

            count = torch.cuda.device_count()
            index = self.device.partition(":")[2] or "0"
            require(count > 0, "hardware.device", self.device, "no CUDA device here; use cpu or auto")
            require(int(index) < count, "hardware.device", self.device, f"this machine has cuda:0 to cuda:{count - 1}")
        if self.precision == "tf32":
            import torch

            device = self.torch_device
            able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
            reason = f"needs an NVIDIA GPU of compute capability 8.0 or later; on {device} use float32"
            require(able, "hardware.precision", self.precision, reason)

    @property
    def torch_device(self) -> "torch.device":
        import torch

        if self.device not in ("auto", "cuda") or not torch.cuda.is_available():
            return torch.device("cpu" if self.device == "auto" else self.device)
        found, wanted = torch.cuda.device_count(), launch.local_count()
        require(
            wanted <= found or wanted == 1, "LOCAL_WORLD_SIZE", wanted,
            f"this machine has {found} GPUs, and each process needs its own; use torchrun --nproc-per-node={found}, or "
            "hardware.device=cpu",
        )  # fmt: skip
        return torch.device("cuda", launch.local_rank()) if launch.count() > 1 else torch.device("cuda")

    def mechanism(self, device: "torch.device") -> str:
        """How cohorts train on `device`: by workers or vectorized."""
        return ("vectorized" if device.type == "cuda" else "workers") if self.engine == "auto" else self.engine

    @property
    def memory_device(self) -> "torch.device | None":
        import torch

        return torch.device("cpu") if self.client_memory == "cpu" else None

    @property
    def dtype(self) -> "torch.dtype":
        import torch

        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def cores(self) -> int:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @property
    def worker_count(self) -> int:
        """The number of workers in each process of a run; the processes on one machine share its cores."""
        return max(1, self.cores // launch.local_count()) if self.workers == "auto" else int(self.workers)
