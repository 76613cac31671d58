"""The config tree as files: where it lies, and which options have which keys."""

import re
from functools import cache
from pathlib import Path

import fedexp

_PACKAGE = Path(fedexp.__file__).parent
CONF = _PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf"  # a wheel; a checkout


@cache
def having(group: str, key: str) -> list[str]:
    """The options of a group whose own file gives a key."""
    line = re.compile(rf"^{re.escape(key)} *:", re.MULTILINE)
    return sorted(path.stem for path in (CONF / group).glob("*.yaml") if line.search(path.read_text()))


def elsewhere(key: str) -> str:
    """A hint for GROUP.NAME that the chosen option lacks: which others have it; empty where none does."""
    group, _, name = key.partition(".")
    found = having(group, name) if name and "." not in name else []
    return f"{', '.join(found)} {'have' if len(found) > 1 else 'has'} it; " if found else ""
