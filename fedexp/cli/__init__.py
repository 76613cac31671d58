"""The programs beside the main one: `python -m fedexp NAME ...`."""

from collections.abc import Sequence
from importlib import import_module

from rich.console import Console

from fedexp.config.explain import exit_code

PROGRAMS = ("again", "bench", "partition", "protocol", "report", "roofline", "study")


def carry_out(name: str, words: Sequence[str]) -> int:
    """Run one of the programs with the words after its name; returns its exit code. Its help is its docstring."""
    program = import_module(f"fedexp.cli.{name}")
    if {"--help", "-h"} & {*words}:
        print(program.__doc__)
        return 0
    return exit_code(program.main, list(words))


def console(width: int) -> Console:
    """As wide as the terminal; `width` characters wide where the output is not a terminal's."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=width)
