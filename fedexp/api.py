"""fedexp from Python and from a notebook; `import fedexp` offers these functions by their names.

    import fedexp

    r = fedexp.run("algorithm=fedcat partition=dir0.1", rounds=60)
    r.metrics["test_accuracy"].plot()
    logits = r.model(pictures)                                   # uint8, as the data set has them
    runs = fedexp.sweep("algorithm=fedavg,fedcat seed=0,1,2", rounds=20)
    fedexp.report(*runs, baseline="fedavg", targets=[0.8])

Words are those of the command line, in one string or several. A key can also be given as an argument, with two
underscores for a dot: local__lr=0.1, or **{"local.lr": 0.1}. A setting that cannot work raises
fedexp.errors.ConfigError before anything is trained; an interrupted run (Ctrl-C, the notebook's stop button) raises
fedexp.errors.Interrupted, and the same call resumes it.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fedexp import experiment
from fedexp.config.checks import check
from fedexp.config.compose import Composer, NoConfig, composed, composing, word
from fedexp.config.explain import explain
from fedexp.config.words import check_words
from fedexp.errors import ConfigError, require
from fedexp.loaded_run import Run
from fedexp.record.folder import RunFolder
from fedexp.record.terminal import lasting_output, log_to_terminal
from fedexp.report.any_runs import compare_runs
from fedexp.report.folders import read
from fedexp.report.page import Page
from fedexp.report.writers import write
from fedexp.sweep.jobs import by_run, sweeps


def compose(*words: str, **keys: Any) -> DictConfig:
    """The checked config of one run."""
    given = _words(words, keys)
    with _explained(given):
        return composed(given)


def run(*words: str, **keys: Any) -> Run:
    """Carry out one run: from the start, from where it was saved, or not at all if it has finished before.

    Raises ConfigError for a setting that cannot work, Busy if another process is at work in the run's folder, Unsaved
    if a file of the result could not be written, and WorkerDied if worker processes keep dying.
    """
    return _carry_out(compose(*words, **keys))


def sweep(*words: str, **keys: Any) -> list[Run]:
    """Carry out the runs of a sweep, one after another: several values of a key (`seed=0,1,2`), or a table
    (`+table=fedcat_1`). Runs that differ in `rounds` alone are one run, of the most rounds. All are checked before the
    first begins; runs that have finished are not repeated. The first that fails raises its error, as `run` does, and
    the others are not begun."""
    log_to_terminal()
    given = _words(words, keys)
    with _values_are_words(keys), _explained(given):
        with composing():
            every = sweeps(given, Composer())
        for each in every:
            each.check_program()
        jobs = [job for each in every for job in each.jobs]
        for job in jobs:
            if job.error is not None:
                raise job.error
            check(job.config)
    return [_carry_out(job.config) for job, _ in by_run(jobs)]


def load(folder: str | Path) -> Run:
    """A run from its folder. Raises ConfigError where there is no run."""
    found = _path("folder", folder)
    require((found / "config.yaml").is_file(), "folder", folder, "holds no run: there is no config.yaml")
    return Run(found.absolute())


def report(
    *places: str | Path | Run | Sequence[str | Path | Run], baseline: str | None = None,
    targets: float | Sequence[float] | None = None, to: str | Path | None = None,
) -> Page:  # fmt: skip
    """Compare runs, given as folders of runs, as folders that contain these, or as what `run` and `sweep` returned.

    baseline: the option, or KEY=VALUE, that all others are compared with. targets: accuracies (fractions), or one of
    them; the rounds, bytes and seconds to reach them are reported. to: a folder for the report's files; None: none are
    written. A notebook shows the page's tables; its `records` is a DataFrame with one row per run.
    """
    every = [each for place in places for each in (place if isinstance(place, list | tuple) else [place])]
    folders = [place.folder if isinstance(place, Run) else _path("places", place) for place in every]
    until: dict[Path, set[int | None]] = {}  # None: all of its rounds
    for each in every:
        if isinstance(each, Run):
            until.setdefault(each.folder.resolve(), set()).add(each.found["rounds"] if each.found else None)
    runs = []
    for run in read(*folders):
        asked = until.get(run.path.resolve(), {None})
        runs += [run.at(rounds) for rounds in sorted({rounds or run.rounds for rounds in asked})]
    require(bool(runs), "places", " ".join(map(str, folders)), "no runs there")
    page = compare_runs(runs, targets=_fractions(targets), baseline=None if baseline is None else str(baseline))
    if to is not None:
        write(page, _path("to", to))
    return page


def _path(argument: str, given: Any) -> Path:
    """The path of a folder, given as this argument. Raises ConfigError for anything else."""
    require(isinstance(given, str | PathLike), argument, given, "must be the path of a folder, as a string or a Path")
    return Path(given).expanduser()


def _fractions(targets: Any) -> list[float] | None:
    """A report's targets as a list. Raises ConfigError for what holds no numbers."""
    if targets is None:
        return None
    single = isinstance(targets, str) or not isinstance(targets, Iterable)
    try:
        return [float(each) for each in ([targets] if single else targets)]
    except (TypeError, ValueError) as error:
        raise ConfigError("targets", targets, "must be a fraction, or a list of them: [0.7, 0.8]") from error


@lasting_output()
def _carry_out(config: DictConfig) -> Run:
    log_to_terminal()
    result = experiment.run(config)
    return Run(RunFolder(config).path.absolute(), result)  # the caller may change the working directory


@contextmanager
def _explained(words: Sequence[str]) -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into a ConfigError that speaks of the command line's words."""
    try:
        yield
    except (NoConfig, HydraException, OmegaConfBaseException) as error:
        line = explain(error, getattr(error, "words", words))
        setting, _, right = line.partition(": ")
        key, given, value = setting.partition("=")
        if not given:  # a word that is none; programs, of which the command line's message speaks, are no words here
            key, value, right = "", setting, right.partition(", or, as the first word")[0]
        raise ConfigError(key, value, right) from error


@contextmanager
def _values_are_words(keys: Mapping[str, Any]) -> Iterator[None]:
    """A list given as an argument is one value; where it is refused, say how several values are given."""
    try:
        yield
    except ConfigError as error:
        value = keys.get(error.key.replace(".", "__"))
        if not isinstance(value, list | tuple) and not (isinstance(value, str) and "," in value):
            raise
        swept = f"several values to sweep over are given in a string: fedexp.sweep('{error.key}=A,B')"
        raise ConfigError(error.key, error.value, f"{error.right}; {swept}") from error


def _words(words: Sequence[str], keys: dict[str, Any]) -> list[str]:
    """All arguments as words of a command line. Raises ConfigError for arguments that hold no words,
    and for words that the command line refuses before it composes them."""
    given = [each for text in words for each in _split(text)]
    given += [word(name.replace("__", "."), value) for name, value in keys.items()]
    check_words(given)
    return given


def _split(text: Any) -> list[str]:
    """The words in a string, quoted as in a shell. Raises ConfigError for anything but a string, and for a quotation
    that does not end."""
    if not isinstance(text, str):
        stars = "put a star before a list of words: *words; two before a dict of keys: **keys"
        hint = stars if isinstance(text, list | tuple | dict) else "a key can also be an argument: seed=1"
        raise ConfigError("", repr(text), f"must be a string of words, such as 'seed=1 rounds=20'; {hint}")
    try:
        return shlex.split(text)
    except ValueError as error:
        right = f"must be words as a shell reads them ({error}); a value can also be an argument: dataset__root='a b'"
        raise ConfigError("", text, right) from error
