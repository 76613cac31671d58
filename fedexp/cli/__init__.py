"""The programs beside the main one: `python -m fedexp NAME ...`."""

import ast
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from fedexp.config.explain import exit_code


def carry_out(name: str, words: Sequence[str]) -> int:
    """Run one of the programs with the words after its name; returns its exit code. Its help is its docstring, which is
    read without importing it: what some of them import takes seconds."""
    if {"--help", "-h"} & {*words}:
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        print(ast.get_docstring(ast.parse(source)))
        return 0
    return exit_code(import_module(f"fedexp.cli.{name}").main, list(words))


def console(width: int) -> Console:
    """As wide as the terminal; `width` characters wide where the output is not a terminal's."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=width)
