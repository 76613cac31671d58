"""fedexp: an experiment runner for federated learning on non-IID data.

    import fedexp

    r = fedexp.run("algorithm=fedcat partition=dir0.1", rounds=20)
    r.metrics, r.accuracy, r.model, r.clients

run, sweep, load, report and compose are those of fedexp/api.py, which is imported when one of them is first used:
importing fedexp alone does not import torch.
"""

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

if os.name == "nt":  # signals, forked workers and the lock of a run's folder are those of Linux and macOS
    raise ImportError("fedexp runs on Linux, not on Windows; install it in the Windows Subsystem for Linux (WSL)")

__version__ = "0.2.0"
__all__ = ["compose", "load", "report", "run", "sweep"]
_PACKAGES = ("report", "sweep")  # packages of these names lie here too, and importing one hides the function


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedexp' has no attribute {name!r}")
    return import_module(f"fedexp.{name}") if name in _PACKAGES else getattr(import_module("fedexp.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Callable(ModuleType):
    """A package that can be called like the function of its name in fedexp/api.py."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return getattr(import_module("fedexp.api"), self.__name__.rpartition(".")[2])(*given, **named)


def make_callable(package: str) -> None:
    """Let a package be called like the function that it hides: fedexp.report(...)."""
    sys.modules[package].__class__ = _Callable
