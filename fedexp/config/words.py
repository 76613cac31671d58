"""Checks of a command line's words, before a config is composed from them."""

import argparse
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from fedexp.config import compose
from fedexp.errors import ConfigError, nearest, require

PROGRAMS = ("again", "bench", "figures", "partition", "protocol", "report", "roofline", "study")  # of fedexp/cli
_NO_NAME = re.compile(r"(null|true|false|[-+]?(nan|inf|[\d._]+(e[-+]?\d+)?))?", re.IGNORECASE)  # not read as strings
_LONG_NUMBER = re.compile(r"[\d_]{400,}")  # Python refuses to read some of these; no setting can have one
_LONGEST = 100_000  # characters; Linux does not pass on much longer words


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The words as parsed by `parser`. Raises ConfigError instead of printing many lines of usage."""

    def refuse(message: str) -> NoReturn:
        raise ConfigError("", " ".join(words), f"{message}; --help lists the options")

    parser.error = refuse  # type: ignore[method-assign]
    try:
        return parser.parse_intermixed_args(list(words))
    except argparse.ArgumentError as error:
        refuse(str(error))


def in_order(words: Sequence[str]) -> list[str]:
    """The same words, flags first: Hydra's parser takes no override after a flag that follows one.

    Raises ConfigError for an unknown flag, or one that lacks its value.
    """
    overrides = parsed(get_args_parser(), words).overrides
    left = list(overrides)
    flags = []
    for word in words:
        if word in left:
            left.remove(word)
        else:
            flags.append(word)
    return [*flags, *overrides]


def of_dry_run(words: Sequence[str]) -> list[str]:
    """The overrides among a dry run's words; a further folder of configs, --config-dir, is one. Raises ConfigError for
    a flag that Hydra does not have, or for another main config, which a dry run does not read."""
    given = parsed(get_args_parser(), [word for word in words if word != "--dry-run"])
    for flag in ("config_path", "config_name"):
        value = getattr(given, flag)
        require(value is None, "--" + flag.replace("_", "-"), value, "does not work with a dry run; leave it out")
    if given.config_dir is None:
        return list(given.overrides)
    folder = Path(given.config_dir)
    require(folder.is_dir(), "--config-dir", folder, "is not a folder")
    return [*given.overrides, compose.word("hydra.searchpath", [f"file://{folder.absolute()}"])]


def check_words(words: Sequence[str]) -> None:
    """Raise ConfigError for words that cannot be overrides, and for choices that name no option of their group."""
    for word in words:
        if word.startswith("-"):
            continue
        key, given, value = word.partition("=")
        require(bool(key.lstrip("+~") or not given), "", word, "must be KEY=VALUE")
        strange = next((letter for letter in word if unicodedata.category(letter) in ("Cc", "Cs")), None)
        if strange is not None:
            raise ConfigError(key, value, f"contains {strange!r}; a setting cannot contain control characters")
        require(len(word) <= _LONGEST, key, value, f"is longer than {_LONGEST} characters")
        number = _LONG_NUMBER.search(word)
        require(number is None, key, value, "holds a number of more digits than any setting can have")
        _check_choice(key.lstrip("+"), given, value)


def _check_choice(group: str, given: str, option: str) -> None:
    """Raise ConfigError for `algorithm=null`, `algorithm=3` or `algorithm=[a,b]`, which name no option and for which
    Hydra would show a traceback; and for `~algorithm` and `~hydra/launcher`, since other choices and Hydra itself
    depend on the group.
    """
    folder = compose.CONF / group.lstrip("~").partition("@")[0]
    known_group = bool(group.lstrip("~")) and os.path.isdir(folder)  # False for a name that no path can have, too
    left_out = group.startswith("~hydra/") or (known_group and group.startswith("~"))
    require(not left_out, group, option, f"cannot be left out; choose an option: {group[1:]}=NAME")
    if not known_group:
        return
    if not given:
        return
    if _NO_NAME.fullmatch(option) or option[:1] in ("[", "{"):
        known = sorted(path.stem for path in folder.glob("*.yaml"))
        raise ConfigError(group, option, f"names no option; {nearest(option, known)}")
