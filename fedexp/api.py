"""fedexp from Python and from a notebook; `import fedexp` offers these functions by their names.

    import fedexp

    r = fedexp.run("algorithm=fedcat partition=dir0.1", rounds=20)
    r.metrics["test_accuracy"].plot()
    logits = r.model(pictures)                                   # uint8, as the data set has them
    runs = fedexp.sweep("algorithm=fedavg,fedcat seed=0,1,2", rounds=20)
    fedexp.report(*runs, baseline="fedavg", targets=[0.8])

Words are those of the command line, in one string or several; keys can be given as arguments as well, a dot of theirs
as two underscores: local__lr=0.1, or **{"local.lr": 0.1}. What cannot work raises fedexp.errors.ConfigError before
anything is trained; an interrupted run (Ctrl-C, the notebook's stop) raises fedexp.errors.Interrupted, and the same
call goes on from there.
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fedexp import experiment
from fedexp.config.compose import CONF, Composer, NoConfig, composed, word
from fedexp.config.explain import explain
from fedexp.config.schema import check
from fedexp.errors import ConfigError, require
from fedexp.record.folder import RunFolder
from fedexp.record.terminal import log_to_terminal
from fedexp.report.any_runs import compare_runs
from fedexp.report.page import Page
from fedexp.report.runs import read
from fedexp.report.writers import write
from fedexp.sweep.jobs import sweeps
from fedexp.trained import Run


def compose(*words: str, **keys: Any) -> DictConfig:
    """The checked config of one run."""
    given = _words(words, keys)
    with _explained(given):
        return composed(given)


def run(*words: str, **keys: Any) -> Run:
    """Carry out one run, or find it done, or go on with it where it was saved."""
    return _carry_out(compose(*words, **keys))


def sweep(*words: str, **keys: Any) -> list[Run]:
    """Carry out all runs of a sweep, one after another: several values of a key (`seed=0,1,2`), or a table
    (`+table=fedcat_1`). All are checked before the first begins; what is finished is not done again."""
    log_to_terminal()
    given = _words(words, keys)
    with _explained(given):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            jobs = [job for each in sweeps(given, Composer()) for job in each.jobs]
        for job in jobs:
            if job.error is not None:
                raise job.error
            check(job.config)
    return [_carry_out(job.config) for job in {job.fingerprint: job for job in jobs}.values()]


def load(folder: str | Path) -> Run:
    """A run from its folder. Raises ConfigError where there is none."""
    found = Path(folder).expanduser()
    require((found / "config.yaml").is_file(), "folder", folder, "holds no run: there is no config.yaml")
    return Run(found)


def report(
    *places: str | Path | Run, baseline: str | None = None, targets: Sequence[float] | None = None,
    to: str | Path | None = None,
) -> Page:  # fmt: skip
    """Runs beside each other: folders with runs, folders of runs, or what `run` and `sweep` have returned.

    baseline: the option, or KEY=VALUE, that all others are compared with. targets: accuracies (fractions) to which
    rounds, bytes and seconds are counted. to: a folder for the report's files; None: none are written. A notebook shows
    the page's tables; `records` is a DataFrame with a row a run.
    """
    folders = [place.folder if isinstance(place, Run) else Path(place).expanduser() for place in places]
    until = {place.folder: place.result["rounds"] for place in places if isinstance(place, Run)}
    runs = [run.at(until.get(run.path, run.rounds)) for run in read(*folders)]
    require(bool(runs), "places", " ".join(map(str, folders)), "no runs there")
    page = compare_runs(runs, targets=targets, baseline=baseline)
    if to is not None:
        write(page, Path(to).expanduser())
    return page


def _carry_out(config: DictConfig) -> Run:
    log_to_terminal()
    result = experiment.run(config)
    return Run(RunFolder(config).path, result)


@contextmanager
def _explained(words: Sequence[str]) -> Iterator[None]:
    """What Hydra and OmegaConf raise is raised as a ConfigError, in the words of the command line."""
    try:
        yield
    except (NoConfig, HydraException, OmegaConfBaseException) as error:
        line = explain(error, getattr(error, "words", words))
        setting, _, right = line.partition(": ")
        key, _, value = setting.partition("=")
        raise ConfigError(key, value, right) from error


def _words(words: Sequence[str], keys: dict[str, Any]) -> list[str]:
    """All as words of a command line."""
    given = [each for text in words for each in shlex.split(text)]
    return [*given, *(word(name.replace("__", "."), value) for name, value in keys.items())]
