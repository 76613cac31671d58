"""From a sweep's command line to its runs: a table's cells x seeds, or the product of swept values."""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from math import prod
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType, ValueType
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fedexp.config.checks import check_resolved
from fedexp.config.compose import Composer, NoConfig, lists, word
from fedexp.config.constructors import GIVEN, GROUPS, PARTS, check_names
from fedexp.config.fingerprint import CIRCUMSTANCES, fingerprint
from fedexp.config.schema import check_plain_keys, resolved
from fedexp.errors import ConfigError, require
from fedexp.sweep.scale import scaled
from fedexp.sweep.table import Cell, Table

_MOST = 100_000  # runs of a sweep; all are composed before it begins
_FREE = (*GROUPS, *PARTS, "tracking")  # groups whose keys depend on the option chosen
# Keys on which the time that a round takes hardly depends.
_ALIKE = ("seed", "partition", "targets", "tracking", "output_root", "table", "sweep", "checkpoint_seconds", "pictures")


@dataclass(frozen=True)
class Job:
    """One run of a sweep. `words` are its overrides, enough to run it alone; `plain` is their config as plain values,
    not to be changed, and None where they cannot be composed: `error` then says why. `make` gives the config itself.
    `reference`: whether it is what the cell is measured against. `protocol`: the cell as its paper has it, scaled
    as the run is, as plain values, without what the command line adds. `fingerprint`: the config's."""

    name: str
    words: list[str]
    plain: dict[str, Any] | None
    error: ConfigError | None = None
    make: Callable[[], DictConfig] | None = None
    cell: Cell | None = None
    reference: bool = False
    protocol: dict[str, Any] | None = None
    fingerprint: str = ""

    @cached_property
    def config(self) -> DictConfig | None:
        """Made when it is asked for: the configs of thousands of runs fill the memory, and most are never needed."""
        return None if self.make is None else self.make()

    @cached_property
    def refused(self) -> ConfigError | None:
        """Why this run cannot be: its words cannot be composed, or a value cannot work on any machine. None where it
        can."""
        if self.plain is not None:
            try:
                check_resolved(self.plain)
            except ConfigError as error:
                return error
        return self.error

    @property
    def kind(self) -> str:
        """What this run has in common with those whose rounds take about as long as its own."""
        keys = {key: value for key, value in (self.plain or {}).items() if key not in (*_ALIKE, "rounds")}
        return json.dumps(keys, sort_keys=True)


@dataclass(frozen=True)
class Sweep:
    """A table's runs, or those of an ordinary multirun (`table` is None)."""

    table: Table | None
    jobs: list[Job]
    scale: str | None

    def check(self) -> None:
        """Raise the first run's ConfigError if no run can be carried out."""
        if all(job.refused for job in self.jobs):
            raise self.jobs[0].refused

    def check_program(self) -> None:
        """Raise ConfigError for a table whose values another program makes: its cells' configs would train as well."""
        name, program = (self.table.name, self.table.program) if self.table else ("", None)
        require(program is None, "table", name, f"has a program of its own: python -m {program}")


def by_run(jobs: Iterable[Job]) -> list[tuple[Job, list[Job]]]:
    """Each run once, as the first job with the most rounds among those that share it, and all of these jobs. A refused
    job shares its run with none."""
    together: dict[str, list[Job]] = {}
    for job in jobs:
        together.setdefault(job.name if job.refused else job.fingerprint, []).append(job)
    return [(max(each, key=lambda job: job.plain["rounds"] if job.plain else 0), each) for each in together.values()]


def sweeps(
    words: Sequence[str], compose: Composer | None = None, say: Callable[[int], None] = lambda every: None,
    wanted: Callable[[Cell], bool] = lambda cell: True,
) -> list[Sweep]:  # fmt: skip
    """All runs that a command line asks for: one Sweep for each table, or one for an ordinary multirun.

    compose: a composer that already holds what other sweeps have composed. say: called before each run is composed,
    with the number of runs. wanted: of a table's cells, those whose runs are asked for.
    """
    compose = compose or Composer()
    overrides = compose.parse(words)
    chosen = [each for each in overrides if each.key_or_group == "table"]
    about_table = [each for each in overrides if each.key_or_group.startswith("table.")]
    # A table of one's own need not have all keys. Table.read knows which there are.
    table_words = [each.input_line if each.is_delete() else f"++{each.input_line.lstrip('+')}" for each in about_table]
    about_scale = [each for each in overrides if each.key_or_group.partition(".")[0] == "scale"]
    others = [each for each in overrides if each.key_or_group.partition(".")[0] not in ("table", "scale")]
    folders = [each.input_line for each in others if each.key_or_group == "hydra.searchpath"]  # they may hold tables
    _refuse_keys_of_no_config(compose, others)
    scale = _scale(compose, about_scale, folders)
    if not chosen:
        require(not about_table, "table", None, "no table is chosen; add one, e.g. +table=fedcat_1")
        named = any(each.key_or_group == "sweep" for each in others)
        name = [] if named else [word("sweep", _sweep_name(others))]
        every, jobs = list(_product(others)), []
        for fixed, swept in every:
            say(len(every))
            jobs.append(_job(compose, " ".join(swept) or "the only run", [*fixed, *swept, *name], scale))
        return [Sweep(None, jobs, scale.get("name"))]
    found = []
    for choice in _values(chosen[-1]):
        table = Table.read(compose([f"+{choice.lstrip('+')}", *table_words, *folders]).table)
        seeds = [each.get_value_string() for each in about_table if each.key_or_group == "table.seeds"]
        given = any(each.key_or_group == table.repeats for each in others)
        require(
            not (seeds and given), "table.seeds", seeds[-1] if seeds else None, f"has no effect beside {table.repeats}"
        )
        table = replace(table, seeds=table.seeds[: scale.get("seeds")])
        found.append(Sweep(table, list(_table_jobs(compose, table, others, scale, say, wanted)), scale.get("name")))
    return found


def _scale(compose: Composer, overrides: list[Override], folders: list[str]) -> DictConfig:
    """The `scale` of all runs; empty where there is none. folders: of further configs, as words."""
    for each in overrides:
        require(not each.is_sweep_override(), each.key_or_group, each.input_line, "must be one for the whole sweep")
    scale = compose([*(each.input_line for each in overrides), *folders]).scale
    most = scale.get("seeds")
    require(most is None or type(most) is int, "scale.seeds", most, "must be a whole number")
    require(most is None or most >= 1, "scale.seeds", most, "must be at least 1")
    return scale


def _refuse_keys_of_no_config(compose: Composer, overrides: list[Override]) -> None:
    """Raise an unknown key's error once for all runs. Keys of groups depend on the option: they are checked by run, and
    so are the values of a key of which some are possible."""

    def composes(value: str) -> bool:
        try:
            return compose.plain([value]) is not None or bool(compose([value]))
        except NoConfig:
            return False

    for each in overrides:
        if each.type is OverrideType.CHANGE and compose.is_value(each) and each.key_or_group.split(".")[0] not in _FREE:
            values = _values(each)
            if not any(map(composes, values)):
                compose(values[:1])


def _table_jobs(
    compose: Composer, table: Table, others: list[Override], scale: DictConfig, say: Callable[[int], None],
    wanted: Callable[[Cell], bool],
) -> Iterable[Job]:  # fmt: skip
    """Cells x seeds x other swept values; keys given on the command line override the table's."""
    given = {each.key_or_group for each in others}
    first = {} if table.paper is None else {"paper": table.paper}
    seeds = [{}] if table.repeats in given else [{table.repeats: seed} for seed in table.seeds]
    combinations = list(_product(others))
    cells = [cell for cell in table.cells if wanted(cell)]
    for each in others:
        key = each.key_or_group
        if key in ("algorithm", "partition"):  # one run would stand for cells that are about these
            options = {str(cell.overrides.get(key)) for cell in cells}
            right = f"the cells of {table.name} differ in it; choose some of them by table.select"
            require(len(options) < 2, key, each.get_value_string(), right)
    runs = sum(2 if cell.reference else 1 for cell in cells) * len(seeds) * len(combinations)
    for cell in cells:
        for overrides, reference in ((cell.overrides, False), (cell.reference, True)):
            if overrides is None:
                continue
            own = {**first, **overrides}
            protocol = _protocol(compose, own, scale)
            for seed, (fixed, swept) in itertools.product(seeds, combinations):
                kept = [word(key, value) for key, value in {**own, **seed}.items() if key not in given]
                words = [*kept, *fixed, *swept, word("+table.name", table.name)]
                name = " ".join([cell.name, *(word(*pair) for pair in seed.items()), *swept])
                say(runs)
                job = _job(compose, f"{name} (reference)" if reference else name, words, scale)
                yield replace(job, cell=cell, reference=reference, protocol=protocol)


def _protocol(compose: Composer, overrides: dict[str, Any], scale: DictConfig) -> dict[str, Any] | None:
    words = [word(key, value) for key, value in overrides.items()]
    try:
        return _plain(compose, _scaled(compose, words, scale))
    except (ConfigError, OmegaConfBaseException):
        return None  # the job, composed from these words and more, reports the error


def _plain(compose: Composer, words: list[str]) -> dict[str, Any]:
    """The config of these words as plain values, which are not to be changed."""
    plain: Any = compose.plain(words)
    if plain is None:
        return resolved(compose(words))
    check_plain_keys(plain)
    return plain


def _scaled(compose: Composer, words: list[str], scale: DictConfig) -> list[str]:
    """The words of a run, and those that scale it; empty scale: none."""
    return [*words, word("+scale.name", scale.get("name")), *scaled(compose(words), scale)] if scale else words


def _job(compose: Composer, name: str, words: list[str], scale: DictConfig) -> Job:
    words = lists(words)
    try:
        words = _scaled(compose, words, scale)
        plain = _plain(compose, words)
        for group in GROUPS:
            check_names(group, plain[group], GIVEN[group])
        return Job(name, words, plain, make=partial(compose, words), fingerprint=fingerprint(plain))
    except ConfigError as error:
        return Job(name, words, None, error)
    except OmegaConfBaseException as error:
        return Job(name, words, None, NoConfig(words, error))


def _product(overrides: list[Override]) -> Iterable[tuple[list[str], list[str]]]:
    """(fixed words, swept words) of each combination of swept values."""
    fixed = [each.input_line for each in overrides if not each.is_sweep_override()]
    swept = [_values(each) for each in overrides if each.is_sweep_override()]
    count, asked = prod(map(len, swept)), " ".join(each.input_line for each in overrides if each.is_sweep_override())
    require(count <= _MOST, "", asked, f"asks for {count} runs; a sweep has at most {_MOST}: split it")
    for combination in itertools.product(*swept):
        yield fixed, list(combination)


def _values(override: Override) -> list[str]:
    """The words for which a swept override stands; one that is not swept stands for itself."""
    if not override.is_sweep_override():
        return [override.input_line]
    key, _, given = override.input_line.partition("=")
    require(override.is_discrete_sweep(), key, given, "must be a list, choice, range or glob of values")
    values = list(islice(override.sweep_string_iterator(), _MOST + 1))
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        values = [value for value in values if value != "own"]  # which is nothing without a class
    require(bool(values), key, given, "contains no values")
    require(len(values) <= _MOST, key, given, f"stands for more than {_MOST} values; split the sweep")
    return [f"{override.get_key_element()}={value}" for value in values]


def _sweep_name(overrides: list[Override]) -> str:
    """The swept keys, and six digits that hash all overrides in any order: a resumed sweep has the same name."""
    said = sorted(each.input_line for each in overrides if each.key_or_group.split(".")[0] not in CIRCUMSTANCES)
    digits = hashlib.blake2b("\n".join(said).encode(), digest_size=3).hexdigest()
    swept = sorted(each.key_or_group for each in overrides if each.is_sweep_override())
    keys = re.sub(r"[^\w.-]+", "_", "-".join(swept))[:40]
    return "-".join(filter(None, ("sweep", keys, digits)))
