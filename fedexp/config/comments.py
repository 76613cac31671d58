"""The comments in the YAML files of conf/."""

from itertools import takewhile
from pathlib import Path

import yaml


def heading(path: Path) -> str:
    """The comment at a file's top."""
    top = takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
    return " ".join(line[1:].strip() for line in top if "@package" not in line)


def comments(path: Path, package: str, otherwise: str) -> dict[str, str]:
    """The comment beside each key that a file sets, by key; it may continue below. `otherwise` where there is none."""
    text = path.read_text()
    lines = text.splitlines()
    found: dict[str, str] = {}

    def visit(node: yaml.Node | None, prefix: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else []:
            name = f"{prefix}{key.value}"
            if isinstance(value, yaml.MappingNode) and value.value:
                visit(value, f"{name}.")
                continue
            found[name] = _beside(lines[key.start_mark.line :]) or otherwise

    visit(yaml.compose(text), f"{package}." if package else "")
    return {key: place for key, place in found.items() if not key.split(".")[-1].startswith("defaults")}


def _beside(lines: list[str]) -> str:
    """The comment in the first of these lines, with the lines below that continue it in the same column."""
    column = lines[0].find("#")
    if column < 0:
        return ""
    below = takewhile(lambda line: line[:column].isspace() and line[column : column + 1] == "#", lines[1:])
    return " ".join(line[column + 1 :].strip() for line in [lines[0], *below])
