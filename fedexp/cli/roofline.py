"""The shortest time that a round could take on a GPU: estimated, not measured, from the demands of a vectorized step.

    python -m fedexp roofline               # cases A to E of fedexp bench, and P
    python -m fedexp roofline A P           # some of them
    python -m fedexp roofline paper=fedcat dataset=made algorithm=scaffold   # a composed run

Two local steps of the whole cohort are carried out on this machine, as one stack, and counted operation by operation:
kernels (all that is not a view), the bytes that each reads and writes, and floating point operations
(torch.utils.flop_counter); the table has those of one step. A step then takes at least the longest of three times:
launching the kernels, moving the bytes, and doing the arithmetic. The GPU's numbers are those published for an H200
(4.8 TB/s, 67 TFLOP/s in float32), and 5 microseconds for the host to launch a kernel; if a step is captured and
replayed without the host, 1.5 microseconds per kernel are assumed. Not counted: that small kernels do not fill a GPU,
evaluation, and work that is done once per round. On an H100 replayed rounds took 6 to 15 times as long as estimated
(outputs/published/gpu.txt), mostly in convolutions: this is a bound, not a forecast. In a run of several stages only
the first is counted, and every client is counted as if it had as many examples as the largest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from fedexp.cli import console
from fedexp.cli.bench import CASES, OurLoop, chosen, new_table
from fedexp.config.compose import composed
from fedexp.config.schema import section

_BYTES, _OPERATIONS, _LAUNCH, _REPLAY = 4.8e12, 67e12, 5e-6, 1.5e-6  # per second, per second, seconds, seconds
# The CIFAR-10 benchmark of pfl-research, with the most similar of fedexp's models: pfl's two convolutions are narrower.
_P = [
    "dataset=made", "dataset.shape=[3,32,32]", "dataset.train=50000", "partition=iid", "model=mcmahan_cnn",
    "model.hidden=128", "clients=1000", "clients_per_round=50", "local.batch_size=10", "local.epochs=1",
    "local.lr=0.1", "local.momentum=0", "rounds=1500",
]  # fmt: skip
_FREE = ("empty", "detach", "view", "alias", "reshape", "expand")


def _of_gradients(dy: torch.Size, x: torch.Size, weight: torch.Size, *rest: Any, out_shape: Any = None) -> int:
    """Operations of a convolution's wanted gradients; PyTorch's own count treats grouped convolutions as full ones."""
    wanted = sum(rest[-1][:2])
    return wanted * 2 * math.prod(dy) // dy[1] * math.prod(weight)


_OWN_COUNTS = {torch.ops.aten.convolution_backward: _of_gradients}


@dataclass
class Demand:
    """What a computation demands of a GPU."""

    kernels: float = 0
    bytes: float = 0
    operations: float = 0

    def __sub__(self, other: "Demand") -> "Demand":
        return Demand(*(getattr(self, name) - getattr(other, name) for name in vars(self)))

    def seconds(self, launch: float) -> tuple[float, str]:
        """The shortest time that it can take, and the limit that sets it. launch: seconds per kernel."""
        return max(
            (self.kernels * launch, "launches"), (self.bytes / _BYTES, "memory"),
            (self.operations / _OPERATIONS, "arithmetic"),
        )  # fmt: skip


class Counter(TorchDispatchMode):
    """Counts kernels and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.demand = Demand()

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        result = operation(*arguments, **(named or {}))
        name = operation.overloadpacket.__name__
        if not operation.is_view and not any(word in name for word in _FREE):
            self.demand.kernels += 1
            touched = [each for each in tree_leaves((arguments, named, result)) if isinstance(each, Tensor)]
            self.demand.bytes += sum(each.numel() * each.element_size() for each in touched)
        return result


def counted(work: Callable[[], Any]) -> Demand:
    """The demand of `work`."""
    with FlopCounterMode(display=False, custom_mapping=_OWN_COUNTS) as operations, Counter() as counter:
        work()
    return replace(counter.demand, operations=operations.get_total_flops())


def a_step(config: DictConfig) -> tuple[Demand, int]:
    """The demand of one local step of a whole cohort, and the number of examples of its largest client."""
    config = config.copy()
    config.hardware.engine, config.hardware.device = "vectorized", "cpu"
    found = []
    for steps in (1, 2):
        config.local.steps = steps
        loop = OurLoop(config)
        loop.enter(0)
        found.append(counted(loop.round))
        loop.close()
    return found[1] - found[0], int(max(loop.ctx.world.sizes))


def main(words: list[str]) -> None:
    """Count what the words name and print the table."""
    columns = ["case", "kernels", "MB", "GFLOP", "round ms", "replayed ms", "limit"]
    table = new_table("an H200: estimated, not measured", columns)
    for name, job in chosen(words, {**CASES, "P": _P}).items():
        config = composed(["tracking=none", *job])
        step, size = a_step(config)
        steps = section(config, "local").schedule(size)[1]
        eager, (replayed, limit) = step.seconds(_LAUNCH)[0], step.seconds(_REPLAY)
        table.add_row(
            name, f"{step.kernels:.0f}", f"{step.bytes / 1e6:,.1f}", f"{step.operations / 1e9:,.2f}",
            f"{1000 * steps * eager:,.1f}", f"{1000 * steps * replayed:,.1f}", limit,
        )  # fmt: skip
    console(80).print(table)
