"""PyTorch's settings of a whole process or thread that change what is computed.

A notebook may have changed them before it calls fedexp, and a run changes some itself. Within a run they are those of a
fresh process, so that it gives the numbers of the command line; afterwards they are what they were.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import torch


class _Setting(NamedTuple):
    """How a setting of the process is read and written, and its value in a fresh process."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    fresh: Any


_ONE_AT_A_TIME = Lock()
_runs = 0  # at work in threads of this process: the first one makes the settings fresh, the last restores them
_before: list[Callable[[], None]] = []  # what restores them


@contextmanager
def of_a_fresh_process() -> Iterator[None]:
    """Within this context the settings of `_settings`, gradients, inference mode, autocast and the default device are
    those of a fresh process."""
    with ExitStack() as held:
        held.enter_context(_whole_process())
        held.enter_context(torch.inference_mode(False))
        held.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                held.enter_context(torch.autocast(kind, enabled=False))
        # Set only where it is needed, since it makes every call a little slower. It is not read by
        # torch.get_default_device, which raises an AttributeError after set_default_device(None) in PyTorch 2.8.
        if torch.empty(0).device.type != "cpu":
            held.enter_context(torch.device("cpu"))
        yield


@contextmanager
def _whole_process() -> Iterator[None]:
    global _runs
    with _ONE_AT_A_TIME:
        if _runs == 0:
            for read, write, _ in _settings():
                with suppress(RuntimeError):  # see _settings
                    _before.append(partial(write, read()))
            for _, write, fresh in _settings():
                write(fresh)
        _runs += 1
    try:
        yield
    finally:
        with _ONE_AT_A_TIME:
            _runs -= 1
            while _runs == 0 and _before:
                _before.pop(0)()


def _settings() -> list[_Setting]:
    """PyTorch has an older and a newer interface (fp32_precision) to the precision of products and convolutions. What
    is written through the older one changes the newer one's values, so these are last; and where a program has used the
    newer one, reading the older one may raise a RuntimeError."""
    backends: Any = torch.backends
    found = [
        _Setting(torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        _attribute(backends.mkldnn, "enabled", True),
        _attribute(backends.cudnn, "deterministic", False),
        _attribute(backends.cudnn, "benchmark", False),
        _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
        _attribute(backends.cudnn, "allow_tf32", True),
    ]
    if hasattr(backends, "fp32_precision"):
        mkldnn, cudnn = backends.mkldnn, backends.cudnn
        owners = (backends, backends.cuda.matmul, cudnn, mkldnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
        found += [_attribute(owner, "fp32_precision", "none") for owner in owners]
        found += [_attribute(owner, "fp32_precision", "tf32") for owner in (cudnn.conv, cudnn.rnn)]
    return found


def _attribute(owner: Any, name: str, fresh: Any) -> _Setting:
    return _Setting(partial(getattr, owner, name), partial(setattr, owner, name), fresh)
