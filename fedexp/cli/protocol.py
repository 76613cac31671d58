"""A paper's protocol as a table: every key that it sets, its value, the file that sets it, and the place in the paper.

    python -m fedexp protocol paper=fedcat dataset=mnist
    python -m fedexp protocol paper=fedconcat dataset=cifar10 algorithm=fedconcat

The last column is the comment beside the key in that file: the place in the paper, or another source.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from rich.markup import escape
from rich.table import Table

from fedexp.cli import console
from fedexp.cli.usage import chosen_files
from fedexp.config.comments import comments, heading
from fedexp.config.compose import Composer, composed, composing
from fedexp.config.options import CONF
from fedexp.config.schema import flat
from fedexp.errors import require


@dataclass(frozen=True)
class Entry:
    """One key that the paper sets. file: relative to conf/, or the command line, which overrides it."""

    key: str
    value: Any
    file: str
    place: str


def card(config: DictConfig, words: list[str]) -> list[Entry]:
    """The entries of a checked config's paper. Raises ConfigError where no paper is chosen."""
    require(config.paper is not None, "paper", config.paper, "choose one, e.g. paper=fedcat")
    with composing():
        given = flat({each.key_or_group: each.value() for each in Composer().parse(words)})
        files = chosen_files(words)
    places: dict[str, tuple[str, str]] = {}  # key to (file, place); if several files set a key, the last one counts
    for path, package in files:
        file = path.relative_to(CONF).as_posix()
        if file.startswith("paper/") or f"/{config.paper}/" in f"/{file}":
            of_file = {**_choices(path), **comments(path, package, heading(path))}
            places |= {key: (file, place) for key, place in of_file.items()}
    places.pop("paper", None)
    places |= {key: ("the command line", "") for key in given if key in places}
    return [Entry(key, _value(config, key), *place) for key, place in places.items()]


def _value(config: DictConfig, key: str) -> Any:
    value = OmegaConf.select(config, key)
    return value.get("name") if isinstance(value, DictConfig) and "_target_" in value else value


def _choices(path: Path) -> dict[str, str]:
    """The groups whose option a file chooses."""
    entries = (yaml.safe_load(path.read_text()) or {}).get("defaults", [])
    named = [name for entry in entries if isinstance(entry, dict) for name in entry]
    return {name.removeprefix("override /"): "the option chosen" for name in named if name.startswith("override /")}


def main(words: list[str]) -> None:
    """Print the protocol as a table."""
    config = composed(words)
    entries = card(config, words)
    table = Table("key", "value", "file", "where it stands", title=f"The protocol of paper={config.paper}")
    for entry in entries:
        table.add_row(*(escape(str(each)) for each in (entry.key, entry.value, entry.file, entry.place)))
    for column in table.columns[:3]:
        column.no_wrap = True
    console(200).print(table)
