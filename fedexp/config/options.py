"""The config tree as files: its folder, and which options have which keys."""

import re
from functools import cache
from pathlib import Path

import fedexp

_PACKAGE = Path(fedexp.__file__).parent
CONF = _PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf"  # a wheel; a checkout


@cache
def having(group: str, key: str) -> list[str]:
    """The options of a group whose own file sets a key."""
    line = re.compile(rf"^{re.escape(key)} *:", re.MULTILINE)
    return sorted(path.stem for path in (CONF / group).glob("*.yaml") if line.search(path.read_text()))


def elsewhere(key: str) -> str:
    """A hint for GROUP.NAME, which the chosen option lacks: the options that have it; empty if none has."""
    group, _, name = key.partition(".")
    found = having(group, name) if name and "." not in name else []
    return f"{', '.join(found)} {'have' if len(found) > 1 else 'has'} it; " if found else ""
