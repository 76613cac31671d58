"""The one-way order of fedexp's rooms: no module imports one that stands above it, not even for types."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import fedexp

ROOT = Path(fedexp.__file__).parent
# From the ground up. A module imports from its own room and from rooms of lower floors. Of a name and a longer one
# that both fit a module the longer one is its room.
FLOORS = (
    ("", "errors", "files", "randomness", "config.frozen"),
    ("config.bounds", "config.launch", "tree", "data"),
    ("config.settings",),
    ("world", "models", "partition"),
    ("engine",),
    ("selection", "server_optimizer", "compression", "privacy", "system", "config"),
    ("measure.accuracy", "record.pictures"),
    ("algorithms",),
    ("round", "global_model"),
    ("measure",),
    ("record",),
    ("building",),
    ("experiment", "sweep"),
    ("report",),
    ("cli", "loaded_run"),
    ("api",),
    ("main", "partition.__main__", "report.__main__"),
    ("__main__",),
)
APART = {("experiment", "sweep"), ("experiment", "report"), ("report", "experiment"), ("sweep", "experiment")}


def name_of(path):
    """Dotted, without fedexp; the package itself is ''."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def module(dotted):
    """The module that a dotted name is, or lies in."""
    while dotted not in MODULES:
        dotted = dotted.rpartition(".")[0]
    return dotted


def imports(path):
    """Modules of fedexp that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{each.name}" for each in node.names]
        else:
            continue
        for name in names:
            if name == "fedexp" or name.startswith("fedexp."):
                yield module(name.removeprefix("fedexp").removeprefix("."))


@cache
def imported():
    """The modules of fedexp that each of them imports."""
    return {name: sorted({*imports(path)} - {name}) for name, path in MODULES.items()}


FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def room(name):
    fitting = [each for each in FLOOR if name == each or (each and name.startswith(f"{each}."))]
    return max(fitting, key=len, default=None)


def test_every_module_has_a_room():
    assert [name for name in MODULES if room(name) is None] == []
    assert len(MODULES) > 100 and sum(map(len, imported().values())) > 300  # imports are found at all


@pytest.mark.parametrize("name", MODULES, ids=lambda name: name or "fedexp")
def test_a_module_imports_from_its_own_room_and_from_below(name):
    own = room(name)
    for other in imported()[name]:
        assert room(other) == own or FLOOR[room(other)] < FLOOR[own], f"{name} imports {other}, which is not below it"
        assert (own, room(other)) not in APART, f"{name} imports {other}, which stands beside it"


def test_no_modules_import_one_another():
    left = {name: {*found} for name, found in imported().items()}
    while free := [name for name, found in left.items() if not found]:
        for name in free:
            del left[name]
        for found in left.values():
            found -= {*free}
    assert left == {}, "a circle of imports, or what stands above one"


@pytest.mark.parametrize("library", ["torchvision", "sklearn", "plotly", "wandb", "dp_accounting"])
def test_a_library_that_takes_long_to_import_is_imported_where_it_is_used(library):
    """Not by reports and dry runs too, which import the modules that a config names."""
    parsed = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
    assert any(_uses(library, ast.walk(module)) for module in parsed.values())
    assert [name for name, module in parsed.items() if _uses(library, module.body)] == []


def _uses(library, nodes):
    """Whether one of these statements imports from a library."""
    names = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module)
    return any(name.split(".")[0] == library for name in names)


def test_windows_is_refused_with_what_to_do_instead():
    """What Windows lacks would otherwise show itself in the middle of a run."""
    ended = subprocess.run(
        [sys.executable, "-c", "import os; os.name = 'nt'; import fedexp"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "Windows Subsystem for Linux" in ended.stderr.splitlines()[-1]
