"""The comments in the YAML files of conf/."""

from itertools import takewhile
from pathlib import Path

import yaml


def heading(path: Path) -> str:
    """The comment at a file's top."""
    top = takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
    return " ".join(line[1:].strip() for line in top if "@package" not in line)


def comments(path: Path, package: str, otherwise: str) -> dict[str, str]:
    """By key that a file sets, the comment beside it; `otherwise` where there is none."""
    text = path.read_text()
    lines = text.splitlines()
    found: dict[str, str] = {}

    def visit(node: yaml.Node | None, prefix: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else []:
            name = f"{prefix}{key.value}"
            if isinstance(value, yaml.MappingNode) and value.value:
                visit(value, f"{name}.")
                continue
            _, mark, comment = lines[key.start_mark.line].partition("#")
            found[name] = comment.strip() if mark else otherwise

    visit(yaml.compose(text), f"{package}." if package else "")
    return {key: place for key, place in found.items() if not key.split(".")[-1].startswith("defaults")}
