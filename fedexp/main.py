"""The command line: compose the config, check it, build and run."""

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fedexp.compose import NoConfig
from fedexp.engine.client import Interrupted
from fedexp.errors import ConfigError, require
from fedexp.explain import explain
from fedexp.record.folder import Busy, RunFolder
from fedexp.run import run
from fedexp.settings import check
from fedexp.sweep import Incomplete

PACKAGE = Path(__file__).parent
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"  # a wheel; a checkout

_NO_NAME = re.compile(r"(null|true|false|[-+]?[\d._]+(e[-+]?\d+)?)?", re.IGNORECASE)  # Hydra reads no string here


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def entry(config: DictConfig) -> dict[str, Any]:
    """One job. In a multirun its errors go to the sweeper; alone it ends the program by `main`."""
    alone = HydraConfig.get().mode == RunMode.RUN
    try:
        if alone:
            for key in ("table", "scale"):
                require(
                    set(config[key]) <= {"name"}, key, config[key].get("name"),
                    "is for sweeps of many runs; add --multirun (-m)",
                )  # fmt: skip
        check(config)
        return run(config)
    except (Busy, Interrupted) as error:
        if not alone:
            raise
        raise _Ended(error) from error
    except Exception as error:
        if alone and isinstance(error, ConfigError):
            raise _Ended(error) from error
        folder = RunFolder(config)
        if not alone or folder.path.is_dir():  # of a sweep's run it is the only trace
            folder.write_error(traceback.format_exc())
        raise


class _Ended(BaseException):
    """Carries an error past Hydra, which would print a traceback for it."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def main() -> None:
    """Exit codes: 0 done; 1 some of a sweep's runs failed; 2 a setting that cannot work; 75 the run's folder is
    in use; 143 SIGTERM; 130 Ctrl-C."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors reach us as they are; we say them in one line
    with one_line_errors(sys.argv[1:]):
        entry()


def composed(words: list[str]) -> DictConfig:
    """The checked config of a command line, for the programs beside the main one."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=words)
    check(config)
    return config


def answer_help(words: list[str], usage: str | None) -> None:
    """End a program beside the main one with its usage, where that is what it was asked for."""
    if "--help" in words or "-h" in words:
        print(usage)
        sys.exit(0)


@contextmanager
def one_line_errors(words: list[str]) -> Iterator[None]:
    """Errors that are the user's to mend end the program with one line and an exit code, not a traceback."""
    try:
        refuse_choices_without_name(words)
        yield
    except _Ended as ended:
        sys.exit(_say(ended.error))
    except NoConfig as error:
        print(f"fedexp: {explain(error, error.words, CONF)}", file=sys.stderr)
        sys.exit(2)
    except (ConfigError, Busy, Interrupted, Incomplete) as error:
        sys.exit(_say(error))
    except (HydraException, OmegaConfBaseException) as error:
        print(f"fedexp: {explain(error, words, CONF)}", file=sys.stderr)
        sys.exit(2)


def refuse_choices_without_name(words: list[str]) -> None:
    """`algorithm=null`, `algorithm=3` name no option; Hydra would show a traceback for them."""
    for word in words:
        group, given, option = word.lstrip("+").partition("=")
        require(bool(group or not given), "words", word, "must be KEY=VALUE")
        if (CONF / group).is_dir() and given and _NO_NAME.fullmatch(option):
            known = ", ".join(sorted(path.stem for path in (CONF / group).glob("*.yaml")))
            raise ConfigError(group, option, f"names no option; known: {known}")


def _say(error: Exception) -> int:
    if isinstance(error, Interrupted):
        print("fedexp: interrupted; the same command goes on from here", file=sys.stderr)
        return 128 + (error.args[0] if error.args else 2)
    print(f"fedexp: {error}", file=sys.stderr)
    return {Busy: 75, Incomplete: 1}.get(type(error), 2)
