"""fedexp from Python and from a notebook; `import fedexp` offers these functions by their names.

    import fedexp

    r = fedexp.run("algorithm=fedcat partition=dir0.1", rounds=20)
    r.metrics["test_accuracy"].plot()
    logits = r.model(pictures)                                   # uint8, as the data set has them
    runs = fedexp.sweep("algorithm=fedavg,fedcat seed=0,1,2", rounds=20)
    fedexp.report(*runs, baseline="fedavg", targets=[0.8])

Words are those of the command line, in one string or several. A key can also be given as an argument, with two
underscores for a dot: local__lr=0.1, or **{"local.lr": 0.1}. A setting that cannot work raises
fedexp.errors.ConfigError before anything is trained; an interrupted run (Ctrl-C, the notebook's stop button) raises
fedexp.errors.Interrupted, and the same call resumes it.
"""

import json
import pickle
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fedexp import experiment
from fedexp.building import build_algorithm, build_dataset, construct
from fedexp.config.compose import Composer, NoConfig, composed, composing, word
from fedexp.config.explain import explain
from fedexp.config.saved import saved
from fedexp.config.schema import check
from fedexp.config.words import check_words
from fedexp.data.dataset import are_tokens
from fedexp.engine.torch_settings import of_a_fresh_process
from fedexp.errors import ConfigError, require
from fedexp.global_model import GlobalModel
from fedexp.models import Model
from fedexp.randomness import seeded
from fedexp.record.folder import RunFolder
from fedexp.record.status import DONE
from fedexp.record.terminal import lasting_output, log_to_terminal
from fedexp.report.any_runs import compare_runs
from fedexp.report.folders import read
from fedexp.report.page import Page, plural
from fedexp.report.writers import write
from fedexp.sweep.jobs import by_run, sweeps

# What reading a file of a run may raise where the file is missing, damaged or another one.
_UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, EOFError, StopIteration,
    pickle.UnpicklingError,
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run's results in its folder; each part is read when it is first used, and raises ConfigError where its file is
    missing or damaged.

    found: the result, where the run was asked for fewer rounds than the folder holds. start: the working directory when
    this Run was made, from which a relative dataset.root is meant. root: the dataset.root that holds now; None: that of
    config.yaml.
    """

    folder: Path
    found: Mapping[str, Any] | None = field(default=None, hash=False)  # a dict has no hash
    start: Path = field(default_factory=Path.cwd, compare=False, repr=False)
    root: str | None = field(default=None, compare=False, repr=False)

    @cached_property
    def config(self) -> DictConfig:
        """The config of the run, checked."""
        return saved(self.folder, [])

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """result.json. Raises ConfigError where there is none: the run was killed before its end."""
        if self.found is not None:
            return self.found
        with self._reading("result.json") as file:
            result = json.loads(file.read_text())
            lacking = [name for name in ("status", "rounds", "final_accuracy") if name not in result]
            if lacking:
                raise ValueError(f"it lacks {', '.join(lacking)}")
        return result

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        """Within this context a file of the folder is read; any error means that it is missing or damaged, and becomes
        a ConfigError that names it."""
        try:
            yield self.folder / name
        except _UNREADABLE as error:
            # What torch says of a damaged file is long, and advises to run code from it.
            why = error if isinstance(error, OSError | ValueError) else type(error).__name__
            raise ConfigError("folder", self.folder, f"has no {name} that can be read ({why})") from error

    @property
    def accuracy(self) -> float | None:
        """The final model's accuracy on the global test set, a fraction; None if no round was evaluated."""
        return self.result["final_accuracy"]

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """metrics.csv: one row per evaluated round, indexed by the round's number."""
        return self._rows.loc[: self.result["rounds"]]

    @cached_property
    def _rows(self) -> pd.DataFrame:
        with self._reading("metrics.csv") as file:
            rows = pd.read_csv(file, float_precision="round_trip", index_col="round")
            rows.index = rows.index.astype("int64")
            if rows.empty:
                raise ValueError("it has no rows")
            if not rows.index.is_unique:
                raise ValueError("a round occurs twice")
        return rows

    def _refuse_earlier(self) -> None:
        """Raise ConfigError where the folder's model is of another round than this result. A model is written when its
        run has ended; one that was then carried on, and interrupted, still has the earlier model."""
        held, asked = Run(self.folder).result, self.result["rounds"]
        status, last = held["status"], held["rounds"]
        right = f"has no model of round {last}, after which it was {status}; the run's own command carries it on"
        require(status in DONE, "folder", self.folder, right)
        require(last == asked, "rounds", asked, f"{self.folder} has only the model of round {last}; ask for that one")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per client: how many examples of each class it holds; for clients that were evaluated
        (evaluate.clients), also the accuracy, how many examples it stands for, and the round."""
        with self._reading("partition.csv") as file:
            held = pd.read_csv(file, index_col="client")
        with self._reading("clients.csv") as file:
            return held.join(pd.read_csv(file, index_col="client")) if file.exists() else held

    @cached_property
    def confusion(self) -> pd.DataFrame:
        """How many test examples of each class (rows) the final model assigns to each class (columns). Raises
        ConfigError where the folder has the model of another round than this result."""
        self._refuse_earlier()
        with self._reading("confusion.csv") as file:
            return pd.read_csv(file, index_col="class")

    @cached_property
    @of_a_fresh_process()
    def model(self) -> GlobalModel:
        """The final global model, on the CPU, ready to predict: see GlobalModel. The data set is read for its shape.
        Raises ConfigError where the folder has the model of another round than this result."""
        self._refuse_earlier()
        with self._reading("model.pt") as file:
            params = torch.load(file, map_location="cpu", weights_only=True)
            dtype = next(value.dtype for value in params.values() if value.is_floating_point())
        config = self.config.copy()
        written = config.dataset.get("root")
        require(written is not None or self.root is None, "dataset.root", self.root, "the run's data set has no root")
        if written is not None:
            named = self.root or str(written)
            root = self.start / Path(named).expanduser()
            config.dataset.root = str(root) if root.exists() else named
        dataset = build_dataset(config)
        stored = tuple(dataset.train_x.shape[1:])
        shape = dataset.transform.shape(stored)
        with seeded(0, held=True):  # its first weights are not used
            net = construct(self.config.model, shape=shape, classes=dataset.classes)
        algorithm, model = build_algorithm(self.config), Model(net.to(dtype))
        tokens = are_tokens(dataset.train_x)
        return GlobalModel(algorithm, model, params, dataset.transform, stored, tokens)

    def __repr__(self) -> str:
        try:
            result = self.result
        except ConfigError as error:  # of a run that is still going, too: a notebook shows what `load` returns
            return f"Run({self.folder}: {error.right})"
        came_to = "no accuracy" if self.accuracy is None else f"accuracy {self.accuracy:.2%}"
        return f"Run({self.folder}: {result['status']}, {plural(result['rounds'], 'round')}, {came_to})"


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


def load(folder: str | Path, dataset__root: str | Path | None = None) -> Run:
    """A run from its folder. dataset__root: where its data set is, which `Run.model` reads, if the run was made on
    another machine. Raises ConfigError where there is no run."""
    found = _path("folder", folder)
    require((found / "config.yaml").is_file(), "folder", folder, "holds no run: there is no config.yaml")
    return Run(found.absolute(), root=None if dataset__root is None else str(_path("dataset__root", dataset__root)))


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
    root = config.dataset.get("root")
    # The caller may change the working directory.
    return Run(RunFolder(config).path.absolute(), result, root=None if root is None else str(root))


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
