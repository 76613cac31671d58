"""Packages that are functions of fedexp/api.py as well: fedexp.report(...) calls what `fedexp.report.runs` lies beside.

Importing a module of a package puts the package in the place of a function of the same name; so the package itself is
called.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *given: Any, **named: Any) -> Any:
        return getattr(import_module("fedexp.api"), self.__name__.rpartition(".")[2])(*given, **named)


def make_callable(package: str) -> None:
    """Let a package be called: as the function of fedexp/api.py that has its last name."""
    sys.modules[package].__class__ = _Callable
