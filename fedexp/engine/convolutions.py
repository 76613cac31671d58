"""Which form of each convolution is the fastest: measured on this machine, at the shapes of the run.

A convolution is computed directly or in tiles (fedexp.models.convolution); for a stack on a GPU, by PyTorch or by
fedexp.models.stacked. All round a little differently. Which is faster depends on the processor's instructions more
than on the number of multiplications. The choice is kept in the user's cache folder, so that every later run on the
same machine rounds alike, and in the run's checkpoint, so that the run itself rounds alike on whichever machine it is
resumed.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor

from fedexp import files
from fedexp.engine.steps import recording
from fedexp.engine.worker import on_threads
from fedexp.models.classifier import Model
from fedexp.models.convolution import laid_out, tile_sizes, tiled
from fedexp.models.layers import STACKED, Convolution, training

# By a layer's path, the side of its tiles, or STACKED; layers that PyTorch computes are left out.
Forms = dict[str, int]

_GAIN = 1.1  # how many times faster than direct convolution a form must be to replace it
_SECONDS = 0.15  # time budget per form; the first repetitions are made in any case


def measured(model: Model, batch: Tensor, threads: int) -> Forms:
    """The fastest forms for one client that trains on batches like `batch` [B, ...], on `threads` CPU threads."""
    layers = _inputs(model, batch, lambda layer, x: bool(tile_sizes(x, layer.weight, layer.border)))
    if not layers:
        return {}
    with on_threads(threads):
        return _chosen(layers, _name, _fastest)


def measured_in_stack(
    model: Model, batch: Tensor, count: int, autocast: Callable[[], AbstractContextManager[Any]]
) -> Forms:
    """STACKED for each layer that is faster in that form: for `count` clients that train at once on this GPU, each on
    batches like `batch` [B, ...]."""
    layers = _inputs(model, batch, _can_be_stacked)

    def name(layer: Convolution, x: Tensor) -> str:
        kind = "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
        with autocast():
            kind = f"{kind} {torch.is_autocast_enabled('cuda')}"
        gpu = torch.cuda.get_device_name(x.device)
        return " ".join(map(str, [gpu, torch.__version__, kind, count, *x.shape, *layer.weight.shape, layer.border]))

    def fastest(layer: Convolution, x: Tensor) -> int:
        with autocast():
            return _fastest_in_stack(layer, x, count, inner=x.shape != batch.shape)

    return _chosen(layers, name, fastest)


def _can_be_stacked(layer: Convolution, x: Tensor) -> bool:
    """Whether a layer has a square kernel, and few enough numbers to count them in 32 bits."""
    high, wide = layer.weight.shape[2:]
    return high == wide and max(len(layer.weight), x.shape[1]) * x[:, 0].numel() < 2**30


def _fastest_in_stack(layer: Convolution, x: Tensor, count: int, inner: bool) -> int:
    """STACKED, or 0 for PyTorch's own convolution of many groups. inner: the input's gradient is needed too."""
    from fedexp.models import stacked

    weights, inputs = (each.detach().expand(count, *each.shape).contiguous() for each in (layer.weight, x))

    def seconds(convolution: Callable[..., Tensor]) -> float:
        def loss(weight: Tensor, x: Tensor) -> Tensor:
            return convolution(x, weight, None, padding=layer.border).square().sum()

        def step() -> None:
            torch.func.vmap(torch.func.grad(loss, argnums=(0, 1) if inner else (0,)))(weights, inputs)

        step()  # a first time, which compiles kernels and readies libraries
        graph, begin, end = torch.cuda.CUDAGraph(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        with recording(graph):  # launched one by one, kernels would wait for Python
            for _ in range(4):
                step()
        graph.replay()
        begin.record()
        for _ in range(4):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    return STACKED if seconds(F.conv2d) > _GAIN * seconds(stacked.convolve) else 0


def _chosen(
    layers: dict[str, tuple[Convolution, Tensor]], name: Callable[[Convolution, Tensor], str],
    fastest: Callable[[Convolution, Tensor], int],
) -> Forms:  # fmt: skip
    """The fastest form of each layer, measured where it is not known by `name`."""
    tiles: Forms = {}
    if layers:
        with _choices() as known:
            for path, (layer, x) in layers.items():
                case = name(layer, x)
                if not isinstance(known.get(case), int):
                    known[case] = fastest(layer, x)
                tiles[path] = known[case]
    return {path: tile for path, tile in tiles.items() if tile}


def _inputs(
    model: Model, batch: Tensor, has_forms: Callable[[Convolution, Tensor], bool]
) -> dict[str, tuple[Convolution, Tensor]]:
    """The layers that have more than one form, and their input in a training step."""
    found: dict[str, tuple[Convolution, Tensor]] = {}

    def keep(layer: Convolution, given: tuple[Tensor], _: Any) -> None:
        if layer.is_ordinary and has_forms(layer, given[0]):
            found[layer.path] = layer, given[0]

    layers = [layer for layer in model.net.modules() if isinstance(layer, Convolution)]
    if not layers:  # nothing to measure, and the input may be tokens, for which zeros cannot stand
        return found
    with ExitStack() as hooks, torch.no_grad(), training(None, torch.tensor(0, device=batch.device), alone=True):
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(keep))
        model.net(batch.to(memory_format=torch.channels_last) if batch.dim() == 4 else batch)
    return found


@contextmanager
def _choices() -> Iterator[dict[str, int]]:
    """Choices by machine and shape, in a file that one process at a time reads and extends."""
    folder = files.user_cache()
    known: Any = {}
    if folder is None:
        yield known
        return
    path = folder / "convolutions.json"
    with ExitStack() as locked:
        with suppress(OSError, ValueError):  # no file yet, or no folder for one: then every run measures
            path.parent.mkdir(parents=True, exist_ok=True)
            locked.enter_context(FileLock(path.with_suffix(".lock")))
            known = json.loads(path.read_bytes())
        known = known if isinstance(known, dict) else {}
        yield known
        with suppress(OSError):
            files.write_text(path, json.dumps(known, indent=1))


def _name(layer: Convolution, x: Tensor) -> str:
    """What the speed of a layer's forms depends on: processor, instructions, PyTorch, threads and shapes."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor()
    limits = [os.environ.get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")]
    machine = [processor, torch.backends.cpu.get_cpu_capability(), torch.__version__, torch.get_num_threads(), *limits]
    return " ".join(map(str, [*machine, *x.shape, *layer.weight.shape, layer.border, layer.bias is not None]))


def _fastest(layer: Convolution, x: Tensor) -> int:
    """The side of the fastest tiles, 0 for direct convolution."""
    weight = laid_out(layer.weight.detach()).clone().requires_grad_()
    bias = None if layer.bias is None else layer.bias.detach().clone().requires_grad_()
    x, padding = x.detach().clone().requires_grad_(), layer.border
    wanted = [each for each in (x, weight, bias) if each is not None]
    dy = torch.ones_like(F.conv2d(x, weight, bias, padding=padding))

    def step(tile: int) -> float:
        began = time.perf_counter()
        y = tiled(x, weight, bias, padding, tile) if tile else F.conv2d(x, weight, bias, padding=padding)
        torch.autograd.grad(y, wanted, dy)
        return time.perf_counter() - began

    best = {tile: step(tile) for tile in [0, *tile_sizes(x, weight, padding)]}  # this is the warm-up as well
    began = time.perf_counter()
    for repetition in range(20):  # in turns, so that a busy moment slows all of them down
        if repetition >= 2 and time.perf_counter() - began > _SECONDS * len(best):
            break
        best = {tile: min(before, step(tile)) for tile, before in best.items()}
    tile = min(best, key=lambda tile: best[tile])
    return tile if best[0] > _GAIN * best[tile] else 0
