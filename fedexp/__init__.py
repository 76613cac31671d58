"""fedexp: an experiment runner for federated learning on non-IID data.

    import fedexp

    r = fedexp.run("algorithm=fedcat partition=dir0.1", rounds=20)
    r.metrics, r.accuracy, r.model, r.clients

run, sweep, load, report and compose are those of fedexp/api.py, which is imported when one of them is asked for: to
import fedexp alone takes no torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"
__all__ = ["compose", "load", "report", "run", "sweep"]
_PACKAGES = ("report", "sweep")  # called as functions, they are their packages: see fedexp/callable.py


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedexp' has no attribute {name!r}")
    return import_module(f"fedexp.{name}") if name in _PACKAGES else getattr(import_module("fedexp.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
