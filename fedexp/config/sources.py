"""The bounds that fedexp's own classes declare, read from their source: importing them takes seconds, which is too long
for a help text."""

import ast
from contextlib import suppress
from pathlib import Path
from typing import Any

import fedexp
from fedexp.config.bounds import Above, AtLeast, Bound, OneOf, Within

_KINDS: dict[str, Any] = {each.__name__: each for each in (Above, AtLeast, OneOf, Within)}
_PACKAGE = Path(fedexp.__file__).parent


def declared_by(target: str) -> dict[str, list[Bound]]:
    """What `bounds.declared` gives for the class `target` (module.Name) of fedexp and those that it inherits from.

    Left out are bounds of a module's own kind, and those whose values are not literals of the same module.
    """
    module, _, name = target.rpartition(".")
    path = _PACKAGE.parent / f"{module.replace('.', '/')}.py"
    if not module.startswith("fedexp.") or not path.is_file():
        return {}
    source = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in source.body if isinstance(node, ast.ImportFrom)]
    places = {each.asname or each.name: f"{node.module}.{each.name}" for node in imports for each in node.names}
    found: dict[str, list[Bound]] = {}
    for node in source.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for base in reversed(node.bases):
                found |= declared_by(places.get(ast.unparse(base), f"{module}.{ast.unparse(base)}"))
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    own = _bounds(field.annotation, _constants(source))
                    found = {**found, ast.unparse(field.target): own}
    return {field: bounds for field, bounds in found.items() if bounds}


def _constants(source: ast.Module) -> dict[str, Any]:
    """The values of a module's names that are written as literals."""
    found = {}
    for node in source.body:
        if isinstance(node, ast.Assign):
            with suppress(ValueError):
                found[ast.unparse(node.targets[0])] = ast.literal_eval(node.value)
    return found


def _bounds(annotation: ast.expr, constants: dict[str, Any]) -> list[Bound]:
    """The bounds in `Annotated[type, bound, ...]`."""
    if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated"):
        return []
    assert isinstance(annotation.slice, ast.Tuple)
    found = []
    for call in annotation.slice.elts[1:]:
        if isinstance(call, ast.Call) and ast.unparse(call.func) in _KINDS:
            with suppress(KeyError, ValueError):
                found.append(_bound(call, constants))
    return found


def _bound(call: ast.Call, constants: dict[str, Any]) -> Bound:
    """The bound that such a call makes. Raises KeyError or ValueError if its arguments are not known."""
    given: list[Any] = []
    for each in call.args:
        if isinstance(each, ast.Starred):
            given += constants[ast.unparse(each.value)]
        else:
            given.append(ast.literal_eval(each))
    named = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg}
    bound: Bound = _KINDS[ast.unparse(call.func)](*given, **named)
    return bound
