"""The command line: compose the config, check it, build and run."""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

import fedexp
from fedexp.cli import carry_out
from fedexp.cli.closing import compare, dry_run
from fedexp.cli.usage import usage
from fedexp.config import launch
from fedexp.config.checks import check
from fedexp.config.compose import NoConfig, lists, refuse_tables
from fedexp.config.constructors import GROUPS
from fedexp.config.explain import exit_code, say
from fedexp.config.loader import fewer_maps
from fedexp.config.options import CONF
from fedexp.config.words import PROGRAMS, in_order, of_dry_run
from fedexp.errors import Busy, ConfigError, Interrupted, Unsaved, WorkerDied, require
from fedexp.record.folder import RunFolder
from fedexp.record.result import value
from fedexp.record.status import Status
from fedexp.record.terminal import lasting_output
from fedexp.sweep.sweeper import FedexpSweeper, register

log = logging.getLogger(__name__)


@lasting_output()
def main() -> None:
    """A run or a sweep, with or without the first word `run`; or the program of fedexp/cli that the first word names.

    Exit codes: 0 done; 1 a run failed, or its files could not be written; 2 a setting that cannot work; 75 the run's
    folder is in use; 143 SIGTERM; 130 Ctrl-C; 129 a terminal that is gone.
    """
    words = sys.argv[1:]
    if words and words[0] in PROGRAMS:
        sys.exit(carry_out(words[0], words[1:]))
    if words and words[0] == "run":
        sys.argv[1:] = words = words[1:]
    if "--version" in words:
        print(f"fedexp {fedexp.__version__}")
        return
    if {"--help", "-h"} & {*words}:
        sys.exit(exit_code(lambda words: usage(words, PROGRAMS), words))
    if _is_dry(words):
        sys.exit(exit_code(lambda words: dry_run(_for_every_cell(of_dry_run(words))), words))
    FedexpSweeper.closing = staticmethod(compare)
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors then reach us as raised; we report them in one line
    if code := exit_code(_hydra, lists(_for_every_cell(words))):
        sys.exit(code)


def _hydra(words: list[str]) -> None:
    """Hand the words to Hydra. Raises NoConfig for any error before a run or a sweep has begun."""
    sys.argv[1:] = in_order(words)
    register()
    try:
        with _mode_as_said(words), fewer_maps():
            entry()
    except Exception as error:
        explained = isinstance(error, ConfigError | HydraException | OmegaConfBaseException)
        if explained or _reached(error, entry.__wrapped__) or _reached(error, FedexpSweeper.sweep):
            raise
        raise NoConfig(words, error) from error


@contextmanager
def _mode_as_said(words: list[str]) -> Iterator[None]:
    """Hydra composes the whole config once more than needed, only to see whether its hydra.mode asks for many runs. No
    file of conf/ sets it: without a word about Hydra or another folder of configs there is nothing to see."""
    look = Hydra.get_mode
    if not any("hydra" in word or word.startswith(("--config", "-c")) for word in words):
        Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.get_mode = look  # type: ignore[method-assign]


def _reached(error: Exception, function: Callable[..., Any]) -> bool:
    """Whether the error was raised within a call of this function."""
    return any(frame.f_code is function.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def entry(config: DictConfig) -> Any:
    """One run: returns its result.json, or, to a Hydra sweeper that searches, the entry of it that `metric` names. In a
    sweep errors go to the sweeper; a single run's errors end the program here, since Hydra would show a traceback."""
    alone, checked = HydraConfig.get().mode == RunMode.RUN, False
    try:
        if alone:
            refuse_tables(config, "is for sweeps of many runs; add --multirun (-m)")
        check(config)
        checked = True
        if alone:
            launch.hide_gpus([config.hardware.device])
        from fedexp.experiment import run  # only now: composing and checking need no torch

        searched = not alone and not HydraConfig.get().sweeper._target_.endswith(".fedexp.Sweep")
        require(
            not searched or config.metric is not None,
            "metric",
            None,
            "must name the number to optimize: metric=best_accuracy",
        )
        result = run(config)
        return value(result, config.metric) if searched else result
    except Exception as error:
        if isinstance(error, Interrupted) and error.__cause__ is not None:
            log.error("the run failed as it was asked to end: %s", error.__cause__)
            _leave(error.__cause__, config, always=not alone)
        if alone and isinstance(error, ConfigError | Busy | Interrupted | Unsaved | WorkerDied):
            if checked and not isinstance(error, Busy | Interrupted) and _has_failed(config):
                _leave(error, config, always=False)
            sys.exit(say(error))  # past Hydra, which would show a traceback
        if not isinstance(error, Busy | Interrupted):
            _leave(error, config, always=not alone)
        raise


def _is_dry(words: Sequence[str]) -> bool:
    """Whether a sweep is to be listed instead of carried out: --dry-run, or --cfg job (-c job) for several runs."""
    sweeps = {"-m", "--multirun"} & {*words} or any(word.lstrip("+").startswith("table=") for word in words)
    others = ("-cd", "-cn", "-cp")  # where Hydra finds configs: these flags begin like -c
    asked = any(word.startswith(("--cfg", "-c")) and not word.startswith(others) for word in words)
    return "--dry-run" in words or (bool(sweeps) and asked)


def _has_failed(config: DictConfig) -> bool:
    """Whether the run's folder says that it failed; a refused command leaves a finished run's folder as it is."""
    return (RunFolder(config).result() or {}).get("status") == Status.FAILED


def _leave(error: BaseException, config: DictConfig, always: bool) -> None:
    """Write the error into the run's folder, if there is one. always: even if there is none yet, because a sweep's run
    may leave no other trace."""
    folder = RunFolder(config)
    if launch.is_first() and (always or folder.path.is_dir()):
        in_short = f"{type(error).__name__}: {' '.join(str(error).split())}"  # the line that reports show
        folder.write_error("\n\n".join([in_short, "".join(traceback.format_exception(error))]))


def _for_every_cell(words: list[str]) -> list[str]:
    """In a table's sweep each cell chooses its own groups; a group's key that is given must nevertheless hold in every
    cell: `dataset.root=FOLDER` becomes `++dataset.root=FOLDER`. So do keys of a table, as one's own may lack them."""
    if not any(word.lstrip("+").startswith("table=") for word in words):
        return words
    of_some = tuple(f"{group}." for group in (*GROUPS, "table"))
    return [f"++{word}" if word.startswith(of_some) else word for word in words]
