"""Errors in one line: the key, the value, and what would be right; also for Hydra's and OmegaConf's errors."""

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from fedexp.config import launch
from fedexp.config.compose import NoConfig, composing, deepest
from fedexp.config.kinds import in_words
from fedexp.config.options import CONF, elsewhere
from fedexp.config.words import PROGRAMS, check_words
from fedexp.errors import Busy, ConfigError, Incomplete, Interrupted, nearest, shown


def exit_code(program: Callable[[list[str]], Any], words: list[str]) -> int:
    """Carry out a program, given `words`; returns its exit code. Expected errors are reported in one line."""
    try:
        check_words(words)
        _check_directory()
        program(words)
    except (ConfigError, Busy, Interrupted, Incomplete, HydraException, OmegaConfBaseException) as error:
        return say(error, words)
    except KeyboardInterrupt:  # between the runs of a sweep, or while it is composed; within a run it is Interrupted
        return say(Interrupted())
    return 0


def _check_directory() -> None:
    """Raise ConfigError where the working directory was deleted, or may not be entered: all else needs it."""
    try:
        Path.cwd()
    except OSError as error:
        right = f"cannot be used ({error.strerror}); change to another directory"
        raise ConfigError("", "the working directory", right) from error


def say(error: Exception, words: Sequence[str] = ()) -> int:
    """Print one of these errors in one line, once if a run has several processes; returns the exit code."""
    of_composing = isinstance(error, NoConfig | HydraException | OmegaConfBaseException)
    line = explain(error, getattr(error, "words", words)) if of_composing else error
    if launch.is_first():
        print(f"fedexp: {line}", file=sys.stderr)
    return getattr(error, "exit_code", ConfigError.exit_code)


def explain(error: Exception, words: Sequence[str]) -> str:
    """What is wrong with the command line `words`, given the error that composing it raised."""
    if isinstance(error, OverrideParseException):
        return _unreadable(error)
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    groups = {path.relative_to(CONF).as_posix() for path in CONF.rglob("*") if path.is_dir()}
    if missing := _missing_option(error, overrides):
        return missing
    lacking = re.search(r"Could not find '(\w+)/(\w+)/(\w+)'", str(error))
    if lacking and lacking[1] != "hydra":
        group, paper, choice = lacking.groups()
        known = [path.stem for path in (CONF / group / paper).glob("*.yaml")]
        return f"paper={paper}: gives no {group} for {choice}; name one with {group}=NAME; {nearest(choice, known)}"
    detail = str(deepest(error))
    keys = _known_keys(overrides, groups)
    for word in overrides:
        name, value = _name(word), _value(word)
        if not keys or name in keys or name in groups or word.startswith("+") or name.startswith("hydra"):
            continue
        given, group = f"{name}={shown(value)}", name.partition(".")[0]
        chosen = group not in ("table", "scale") and any(re.match(rf"\+table=|{group}=.*,", one) for one in words)
        if group in groups and chosen:
            return f"{given}: each run of the sweep chooses its {group}; to set the key in all of them: ++{given}"
        return _unknown(name, value, keys, overrides)
    key = re.search(r"full_key: (\S+)", detail)
    file = re.match(r"In '(.+?)': ConfigKeyError", detail)
    if key and file:
        return f"{key[1]}: no such key, in {file[1]}.yaml; {nearest_key(key[1], keys)}"
    if key:
        name, _, element = key[1].partition("[")
        given = _given(name, overrides)
        if isinstance(deepest(error), ConfigKeyError | ConfigAttributeError):
            return _unknown(key[1], given, keys, overrides)
        return f"{name}={shown(given)}: {in_words(detail.splitlines()[0], bool(element), given)}"
    said = " ".join(detail.split())
    about, _, _ = said.partition(", possible interpolation keys:")  # Hydra then lists every group
    if any(_name(word) in about for word in overrides):
        return said
    culprit = _culprit(overrides)
    return said if culprit is None else f"{_name(culprit)}={shown(_value(culprit))}: {said}"


def in_short(error: ConfigError) -> str:
    """What is wrong with the words of a sweep's run, without composing anew, which would take long for many runs."""
    if not isinstance(error, NoConfig):
        return str(error)
    return _missing_option(error, error.words) or error.right


def _culprit(overrides: list[str]) -> str | None:
    """The first override that cannot be composed with those before it; None where all can."""
    low, high = 0, len(overrides) + 1  # the first `low` overrides compose; the first `high` do not
    with composing():
        while high - low > 1:
            middle = (low + high) // 2
            try:
                compose("config", overrides=overrides[:middle])
                low = middle
            except Exception:  # unexpected words can make Hydra raise anything
                high = middle
    return overrides[low] if low < len(overrides) else None


def _unreadable(error: OverrideParseException) -> str:
    """The message for a word that Hydra's grammar of overrides does not allow."""
    name, given, value = error.override.partition("=")
    if not given:
        return f"{name}: must be KEY=VALUE, or, as the first word, the name of a program; {nearest(name, PROGRAMS)}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    quoted = shlex.quote(f'{name}="{escaped}"')
    home = f"write $HOME{value[1:]}, or " if value.startswith("~/") else ""
    return f"{name}={shown(value)}: cannot be read as it stands; {home}quote twice: {quoted}"


def _missing_option(error: BaseException | None, overrides: list[str]) -> str | None:
    """The message for a choice that its group does not have; None if that is not the error."""
    while error is not None and not isinstance(error, MissingConfigException):
        error = error.__cause__
    if error is None or error.missing_cfg_file is None:
        return None
    group, _, option = error.missing_cfg_file.rpartition("/")
    named = any(_name(word).partition("@")[0] == group for word in overrides)
    return f"{group}={shown(option)}: no such option; {nearest(option, error.options or [])}" if named else None


def _known_keys(overrides: list[str], groups: set[str]) -> list[str]:
    """All keys of the config that the valid group choices among the overrides give."""
    choices = []
    for word in overrides:
        name, _, value = word.lstrip("+").partition("=")
        if name in groups and (CONF / name / f"{value}.yaml").exists():
            choices.append(word)
    try:
        with composing():
            return key_names(OmegaConf.to_container(compose("config", overrides=choices)))
    except HydraException:
        return []


def _unknown(key: str, value: Any, keys: list[str], overrides: list[str]) -> str:
    """The message for a key that the config does not have."""
    group, given = key.partition(".")[0], f"{key}={shown(value)}"
    own = f"; for one of your own: +{given}" if group == "measures" or f"{group}=own" in overrides else ""
    return f"{given}: no such key; {elsewhere(key)}{nearest_key(key, keys)}{own}"


def _given(key: str, overrides: list[str]) -> Any:
    """The value that the words give a key, perhaps within a dict; empty where they give none."""
    for word in reversed(overrides):
        name = _name(word)
        if name == key:
            return _value(word)
        if key.startswith(f"{name}."):
            inside = OverridesParser.create().parse_override(word).value()
            for part in key.removeprefix(f"{name}.").split("."):
                inside = inside.get(part) if isinstance(inside, dict) else None
            if inside is not None:
                return inside
    return ""


def _name(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _value(word: str) -> str:
    return word.partition("=")[2]


def nearest_key(name: str, keys: list[str]) -> str:
    """A hint for an unknown key. Slips are likeliest in a name's last part, so siblings are suggested if it has any."""
    parent, _, last = name.rpartition(".")
    if deeper := [key for key in keys if key.rpartition(".")[2] == name]:
        return f"did you mean {' or '.join(deeper[:3])}?"
    siblings = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == parent]
    return nearest(last, siblings) if siblings else nearest(name, keys)


def key_names(node: Any, before: str = "") -> list[str]:
    """The names of all keys of nested dicts, those of the dicts among them."""
    names = []
    for name, value in node.items():
        names.append(f"{before}{name}")
        if isinstance(value, dict):
            names += key_names(value, f"{before}{name}.")
    return names
