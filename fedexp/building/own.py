"""What is told of a user's own classes before the first round, from their code as Python has compiled it."""

import difflib
import dis
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from fedexp.algorithms.fedavg import FedAvg
from fedexp.errors import require
from fedexp.selection.uniform import Uniform
from fedexp.server_optimizer.sgd import Sgd


def misspelt(kind: type) -> Iterator[tuple[str, str]]:
    """Names in a user's class that are nearly those of hooks, and that nothing in its module calls; and these hooks."""
    parents = (each for each in kind.__mro__ if each.__module__.startswith("fedexp."))
    known = [name for name in dir(next(parents, object)) if not name.startswith("_")]
    functions = {name: value for each in _own(kind) for name, value in vars(each).items() if callable(value)}
    modules = (vars(sys.modules[each.__module__]) for each in _own(kind) if each.__module__ in sys.modules)
    beside = [each for module in modules for each in module.values() if _is_users(each, kind)]
    code = [value for each in beside if inspect.isclass(each) for value in vars(each).values()]
    called = {
        name for value in (*functions.values(), *beside, *code) for each in _codes(value) for name in each.co_names
    }
    fields = {name for each in _own(kind) for name in inspect.get_annotations(each)}
    values = {name: value for each in _own(kind) for name, value in vars(each).items() if name not in fields}
    switches = [name for name, value in values.items() if isinstance(value, bool | str)]  # such as needs_head
    for name in (*functions, *switches):
        if name not in known and name not in called and not name.startswith("_"):
            yield from ((name, hook) for hook in difflib.get_close_matches(name, known, n=1, cutoff=0.8))


def reads_rounds(kind: type) -> bool:
    """Whether the code of a user's class reads an attribute `rounds`, such as the context's."""
    code = (each for own in _own(kind) for value in vars(own).values() for each in _codes(value))
    return any("rounds" in each.co_names for each in code)


def check_use_of_parts(algorithm: FedAvg) -> None:
    """Raise ConfigError for a part that a user's own hooks leave without effect: two runs with different parts, and
    folders of their own, would give the same numbers."""
    selection, optimizer, kind = algorithm.selection, algorithm.server_optimizer, type(algorithm)
    right = f"has no effect on {kind.__name__}: nothing in its"
    own = _without("server_optimizer", kind, "aggregate", "step")
    to_do = f"{right} {own} leads to self.server_optimizer; call self.step there, or use server_optimizer=sgd"
    plain = type(optimizer) is Sgd
    require(not own or plain, "server_optimizer", type(optimizer).__name__, to_do)
    require(not own or optimizer.lr == 1, "server_optimizer.lr", optimizer.lr, f"{to_do} with 1")
    own = _without("selection", kind, "aggregate", "combine")
    to_do = f"{right} {own} leads to self.selection.weights; use examples"
    require(not own or selection.merge == "examples", "selection.merge", selection.merge, to_do)
    weighs = not own and type(selection).weights is not Uniform.weights
    own = _without("selection", kind, "select")
    to_do = f"{right} select leads to self.selection; use selection=uniform"
    require(not own or weighs or type(selection) is Uniform, "selection", type(selection).__name__, to_do)
    own = _without("system", kind, "answers")
    for name in ("deadline", "wait_for"):
        value = getattr(algorithm.system, name, None)
        require(not own or value is None, f"system.{name}", value, f"{right} answers leads to self.system; use null")


def _without(part: str, kind: type, first: str, *others: str) -> str:
    """Which of these hooks a user's class has of its own, joined by "and", if what the first of them leads to never
    reads the algorithm's `part`; otherwise an empty text."""
    defined = [name for name in (first, *others) if any(name in vars(each) for each in _own(kind))]
    return "" if not defined or _leads_to(part, kind, first) else " and ".join(defined)


def _own(kind: type) -> list[type]:
    """Those of a class and its parents that are not fedexp's."""
    return [each for each in kind.__mro__ if not each.__module__.startswith("fedexp.") and each is not object]


def _leads_to(part: str, kind: type, hook: str) -> bool:
    """Whether a hook reads an attribute `part` of the algorithm, or anything that it calls does: methods of the
    algorithm, fedexp's included, and functions and classes of the user. True, too, where that cannot be known."""
    line, seen = kind.__mro__, set[int]()
    todo = _defined(line, hook, 0)
    while todo:
        value, place = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        todo += [(each, place) for each in _within(value, line)]
        if not _is_users(value, kind) and not any(value is each for own in line for each in vars(own).values()):
            continue
        todo += [(each, place) for each in vars(value).values()] if inspect.isclass(value) else []
        for code in _codes(value):
            read, imports = _read(code)
            if part in read or "parts" in read or any(name not in sys.modules for name in imports):
                return True
            known = getattr(value, "__globals__", {})
            spaces = [
                each for name in code.co_names if inspect.ismodule(each := known.get(name)) or inspect.isclass(each)
            ]
            spaces += [sys.modules[name] for name in imports]
            todo += [(known[name], place) for name in code.co_names if name in known]
            todo += [(vars(each)[name], place) for each in spaces for name in code.co_names if name in vars(each)]
            todo += [each for name in read for each in _defined(line, name, 0)]
            above = code.co_names if "super" in code.co_names else ()
            todo += [each for name in above for each in _defined(line, name, place + 1)]
    return False


def _defined(line: tuple[type, ...], name: str, first: int) -> list[tuple[Any, int]]:
    """What the classes from place `first` on define under a name, if any does: the first definition, and its place."""
    return [(vars(each)[name], place) for place, each in enumerate(line) if place >= first and name in vars(each)][:1]


def _is_users(value: Any, kind: type) -> bool:
    """Whether a function or class is of the user's own code: of a package that has a class of the algorithm's, or of
    one that is not installed. Others know nothing of the algorithm, and to follow them would take long."""
    package = str(getattr(value, "__module__", "")).partition(".")[0]
    if package in {each.__module__.partition(".")[0] for each in _own(kind)}:
        return True
    file = Path(getattr(sys.modules.get(package), "__file__", None) or "")
    installed = package in sys.stdlib_module_names or {"site-packages", "dist-packages"} & {*file.parts}
    return package != "fedexp" and not installed


def _within(value: Any, line: tuple[type, ...]) -> Iterator[Any]:
    """What a method is made of: a decorator's function, a partial's, a property's; and what its closure holds."""
    if inspect.ismodule(value):  # it is no method, and some, such as torch.classes, answer to every name
        return
    yield from filter(callable, (getattr(value, name, None) for name in ("__func__", "__wrapped__", "func", "fget")))
    closure = getattr(value, "__closure__", None)
    for cell in closure if isinstance(closure, tuple) else ():
        try:
            if cell.cell_contents not in line:  # super() has its class there
                yield cell.cell_contents
        except ValueError:  # it is empty
            continue


def _codes(value: Any) -> list[CodeType]:
    """A function's code, and that of the functions defined within it."""
    found = [code for code in [getattr(value, "__code__", None)] if isinstance(code, CodeType)]
    for code in found:
        found += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def _read(code: CodeType) -> tuple[set[str], list[str]]:
    """The attributes that code reads of its parameters, one of which may be the algorithm, and the modules that it
    imports. An attribute of anything else, such as a PyTorch optimizer's `step`, does not count."""
    count = code.co_argcount + code.co_kwonlyargcount
    parameters = {*code.co_varnames[:count], *code.co_freevars}
    read, imports = set[str](), list[str]()
    of_parameter = False  # whether what was loaded last is a parameter, or an attribute of one
    for each in dis.get_instructions(code):
        if each.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            names = each.argval if isinstance(each.argval, tuple) else (each.argval,)  # some load two at once
            of_parameter = names[-1] in parameters
        elif each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            read |= {each.argval} if of_parameter else set()
        else:
            imports += [each.argval] if each.opname == "IMPORT_NAME" else []
            of_parameter = False
    return read, imports
