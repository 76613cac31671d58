"""The text of `fedexp --help`: the commands, the groups to choose from, and every key with its meaning."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedexp.config.bounds import Bound, OneOf, declared
from fedexp.config.comments import comments
from fedexp.config.compose import composing
from fedexp.config.constructors import GIVEN, GROUPS, PARTS, constructor
from fedexp.config.options import CONF
from fedexp.config.schema import Evaluate, Settings, flat
from fedexp.config.settings import Hardware, Local
from fedexp.config.sources import declared_by
from fedexp.config.words import PROGRAMS
from fedexp.errors import nearest, require, shown

_INTERNAL = {"name", "_target_", "source"}  # keys of a group that are not settings
_HIDDEN = ("paper", "table", "scale", "sweep")  # groups, what a table is made of, or set by fedexp itself
_OF_TABLES = {
    "table.select": "a regular expression that a cell's name must contain, as --dry-run lists it; null: all",
    "table.seeds": "each cell is run once for each of these",
    "scale.seeds": "how many of these are run",
}
_OF_GROUPS = {"dataset": "the data", "partition": "which client holds which examples", "model": "what is trained",
              "algorithm": "how the cohort's work is combined", "selection": "which clients take part",
              "server_optimizer": "how the server steps", "compression": "how updates are encoded",
              "privacy": "differential privacy", "system": "clients' devices",
              "hardware": "where it runs", "tracking": "where metrics are logged",
              "paper": "a paper's whole protocol"}  # fmt: skip
_COMMANDS = [
    ("fedexp [run] KEY=VALUE ...", "one run: fedexp algorithm=fedcat partition=dir0.1"),
    ("fedexp [run] -m KEY=A,B ...", "a sweep over values: fedexp -m algorithm=fedavg,fedcat seed=0,1,2"),
    ("fedexp [run] -m +table=NAME", "a published table, or shrunk to minutes: +scale=quick"),
]
_FLAGS = [
    ("--help", "shows this help; with words before it, the help for their choice: fedexp algorithm=fedprox --help"),
    ("--cfg job", "the composed config, without running"),
    ("--dry-run", "lists a sweep's runs with their state and time, without running them; also -m ... --cfg job"),
    ("--version", "shows fedexp's version"), ("--hydra-help", "shows Hydra's own flags, launchers and sweepers"),
]  # fmt: skip


def usage(words: Sequence[str], programs: Sequence[str]) -> None:
    """Print the help for the config that `words` choose. Raises the errors of composing it."""
    for word in words:
        right = f"must be KEY=VALUE, or, as the first word, the name of a program; {nearest(word, PROGRAMS)}"
        require("=" in word or word.startswith(("-", "~")), "", word, right)
    words = [word for word in words if "=" in word and not word.startswith("-")]
    with composing():
        files = chosen_files(words)
        config = compose("config", overrides=words)
    told: dict[str, str] = {}
    for path, package in files:
        said_here = {key: text for key, text in comments(path, package, "").items() if text}
        if "paper" in path.relative_to(CONF).parts:  # it says where a value comes from, and not what the key means
            said_here = {key: f"{told[key]}; here: {text}" if key in told else text for key, text in said_here.items()}
        told |= said_here
    console = Console(highlight=False)
    said = [(f"fedexp {name}", _first_sentence(Path(__file__).with_name(f"{name}.py"))) for name in programs]
    _show(console, "Federated learning on non-IID data, as experiments", [*_COMMANDS, *said, *_FLAGS])
    _show(console, "Groups (GROUP=OPTION; the option chosen by default stands first)", _groups(config))
    _show(console, "Keys (KEY=VALUE), with the values that they have here", _keys(config, told))
    console.print("For an option's own keys: fedexp GROUP=OPTION --help")


def chosen_files(words: Sequence[str]) -> list[tuple[Path, str]]:
    """The files of conf/ from which a command line's config is composed, in order; for each, the key that its own keys
    are under. Hydra must be initialised."""
    loader = GlobalHydra.instance().config_loader()
    found = loader.compute_defaults_list("config", list(words), RunMode.RUN).defaults
    files = [(CONF / f"{each.config_path}.yaml", each.package or "") for each in found]
    return [(path, package) for path, package in files if path.is_file()]


def _show(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=False, overflow="fold", max_width=36)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(escape(name), escape(text))
    console.print(table)
    console.print()


def _first_sentence(path: Path) -> str:
    """The first paragraph of a module's docstring, without importing the module."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    return text.removesuffix(":").removesuffix(".")


def _groups(config: DictConfig) -> list[tuple[str, str]]:
    rows = []
    for group in (*GROUPS, *PARTS, "hardware", "tracking", "paper", "+table", "+scale"):
        node = config.get(group)
        chosen = (node.get("name") if isinstance(node, DictConfig) else node) or "none"
        known = [path.stem for path in (CONF / group.lstrip("+")).glob("*.yaml")]
        options = sorted(known, key=lambda option: (option != chosen, option))
        rows.append((group, ", ".join(options) + (f"  ({_OF_GROUPS[group]})" if group in _OF_GROUPS else "")))
    return rows


def _keys(config: DictConfig, told: dict[str, str]) -> list[tuple[str, str]]:
    kinds = {"": Settings, "local.": Local, "evaluate.": Evaluate, "hardware.": Hardware}
    bounds = {f"{before}{key}": found for before, kind in kinds.items() for key, found in declared(kind).items()}
    rows = []
    plain: Any = OmegaConf.to_container(config)
    bounds |= {
        f"{node}.{key}": found for node, target in _constructors(plain) for key, found in declared_by(target).items()
    }
    for key, value in flat(plain).items():
        hidden = key.partition(".")[0] in _HIDDEN and key not in _OF_TABLES
        if hidden or _INTERNAL & {*key.split(".")}:
            continue
        text = _OF_TABLES.get(key) or told.get(key, "")
        right = [each.words for each in bounds.get(key, []) if not _named(each, text)]
        rows.append((f"{key}={shown(value)}", f"{text} ({', '.join(right)})" if right else text))
    return rows + [row for node, target in _constructors(plain) for row in _own_keys(node, target, plain)]


def _own_keys(node: str, target: str, plain: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of a user's own class or function that the config does not name: they are added with a +."""
    if target.startswith("fedexp.") or node not in plain:
        return
    found = constructor(node, target)
    bounds = declared(found)
    for name, each in inspect.signature(found).parameters.items():
        if name not in {*GIVEN.get(node, ()), *plain[node]} and each.kind is not each.VAR_KEYWORD:
            value = "" if each.default is each.empty else shown(each.default)
            yield f"+{node}.{name}={value}", ", ".join(bound.words for bound in bounds.get(name, []))


def _constructors(node: dict[str, Any], name: str = "") -> Iterator[tuple[str, str]]:
    """The name of each node of the config that names a constructor, and the constructor."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _constructors(value, f"{name}.{key}".lstrip("."))
        elif key == "_target_" and value:
            yield name, value


def _named(bound: Bound, text: str) -> bool:
    """Whether a comment already names all choices."""
    return isinstance(bound, OneOf) and all(str(choice) in text for choice in bound.choices)
