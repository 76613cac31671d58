"""What OmegaConf says of a value of the wrong kind, in plain words."""

import re
from typing import Any

_LIST, _KEYS = "must be a list, such as [1, 2]", "has keys of its own; set these one by one"
_WORDS = (
    ("could not be converted to Integer", "must be a whole number"),
    ("could not be converted to Float", "must be a number"),
    ("is not a valid bool", "must be true or false"),
    ("Cannot convert '.*' to string", "must be a single text"),
    ("is not Optional|Incompatible value 'None'", "must not be null"),
    ("is not a ListConfig", _LIST),
    ("does not support deletion", "must be given"),
    ("is not a subclass of|Cannot assign .* to Dict", _KEYS),
)  # fmt: skip


def in_words(said: str, inside: bool = False, given: Any = "") -> str:
    """What would be right, given the first line of OmegaConf's error; the line itself if it is another error.

    inside: whether the value is one of a list's, which is then named. given: the value as a word has it, if known.
    """
    if "Cannot merge DictConfig with ListConfig" in said:  # said of a list and of keys alike
        return {"[": _KEYS, "{": _LIST}.get(str(given)[:1], "is a list where keys belong, or the other way round")
    for pattern, right in _WORDS:
        if re.search(pattern, said):
            value = re.match("Value '(.*)' (of type|is not)", said)
            return f"{value[1]}, which is in it, {right}" if inside and value else right
    return said
