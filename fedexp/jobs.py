"""From a sweep's command line to its runs: a table's cells x seeds, or the product of swept values."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fedexp.compose import Composer, NoConfig, word
from fedexp.errors import ConfigError, require
from fedexp.scale import scaled
from fedexp.settings import GROUPS, fingerprint
from fedexp.table import Cell, Table

_FREE = (*GROUPS, "tracking", "scale")  # what keys there are depends on the choice


@dataclass(frozen=True)
class Job:
    """One run of a sweep. `words` are its overrides, enough to run it alone; `config` is None where they cannot
    be composed, and `error` then says why. `reference`: whether it is what the cell is measured against.
    `protocol`: the cell as its paper has it, without scale and without what the command line adds."""

    name: str
    words: list[str]
    config: DictConfig | None
    error: ConfigError | None = None
    cell: Cell | None = None
    reference: bool = False
    protocol: DictConfig | None = None

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.config)


@dataclass(frozen=True)
class Sweep:
    """A table's runs, or those of an ordinary multirun (`table` is None)."""

    table: Table | None
    jobs: list[Job] = field(default_factory=list)
    scale: str | None = None


def sweeps(words: Sequence[str], compose: Composer | None = None) -> list[Sweep]:
    """All runs that a command line asks for: one Sweep for each table, or one for an ordinary multirun.

    `compose`: a composer that remembers what other sweeps have needed.
    """
    compose = compose or Composer()
    overrides = compose.parse(words)
    chosen = [each for each in overrides if each.key_or_group == "table"]
    about_table = [each.input_line for each in overrides if each.key_or_group.startswith("table.")]
    others = [each for each in overrides if each.key_or_group.partition(".")[0] != "table"]
    _refuse_keys_of_no_config(compose, others)
    if not chosen:
        if about_table:
            raise ConfigError("table", None, "no table is chosen; add one, e.g. +table=fedcat_1")
        jobs = [_job(compose, _name(swept), [*fixed, *swept]) for fixed, swept in _product(others)]
        return [Sweep(None, jobs, _scale_name(jobs))]
    found = []
    for choice in _values(chosen[-1]):
        scales = [each.input_line for each in others if each.key_or_group.partition(".")[0] == "scale"]
        config = compose([f"+{choice.lstrip('+')}", *about_table, *scales])
        table = Table.read(config.table)
        most = config.scale.get("seeds")
        require(most is None or most >= 1, "scale.seeds", most, "must be at least 1")
        table = replace(table, seeds=table.seeds[:most])
        jobs = list(_table_jobs(compose, table, others))
        found.append(Sweep(table, jobs, _scale_name(jobs)))
    return found


def _refuse_keys_of_no_config(compose: Composer, overrides: list[Override]) -> None:
    """One mistake, not one of every run. A group's keys depend on its choice: only the runs tell about them."""
    for each in overrides:
        if each.type is OverrideType.CHANGE and compose.is_value(each) and each.key_or_group.split(".")[0] not in _FREE:
            for value in _values(each):
                compose([value])


def _table_jobs(compose: Composer, table: Table, others: list[Override]) -> Iterable[Job]:
    """Cells x seeds x what else is swept; keys given on the command line win over the table's."""
    given = {each.key_or_group for each in others}
    first = {} if table.paper is None else {"paper": table.paper}
    seeds = [{}] if table.repeats in given else [{table.repeats: seed} for seed in table.seeds]
    combinations = list(_product(others))
    for cell in table.cells:
        for overrides, reference in ((cell.overrides, False), (cell.reference, True)):
            if overrides is None:
                continue
            own = {**first, **overrides}
            protocol = _protocol(compose, own)
            for seed, (fixed, swept) in itertools.product(seeds, combinations):
                kept = [word(key, value) for key, value in {**own, **seed}.items() if key not in given]
                words = [*kept, *fixed, *swept, word("+table.name", table.name)]
                name = " ".join([cell.name, *(word(*pair) for pair in seed.items()), *swept])
                job = _job(compose, f"{name} (reference)" if reference else name, words)
                yield replace(job, cell=cell, reference=reference, protocol=protocol)


def _protocol(compose: Composer, overrides: dict[str, Any]) -> DictConfig | None:
    try:
        return compose([word(key, value) for key, value in overrides.items()])
    except ConfigError:
        return None  # the job, composed from the same words and more, says why


def _job(compose: Composer, name: str, words: list[str]) -> Job:
    try:
        config = compose(words)
        if config.scale:
            others = [each for each in words if not each.startswith(("+scale=", "scale=", "scale.", "++scale"))]
            words = [*others, word("+scale.name", config.scale.get("name")), *scaled(config)]
            config = compose(words)
        fingerprint(config)  # resolves it
    except ConfigError as error:
        return Job(name, words, None, error)
    except OmegaConfBaseException as error:
        return Job(name, words, None, NoConfig(words, error))
    return Job(name, words, config)


def _product(overrides: list[Override]) -> Iterable[tuple[list[str], list[str]]]:
    """(fixed words, swept words) of each combination of swept values."""
    fixed = [each.input_line for each in overrides if not each.is_sweep_override()]
    swept = [_values(each) for each in overrides if each.is_sweep_override()]
    for combination in itertools.product(*swept):
        yield fixed, list(combination)


def _values(override: Override) -> list[str]:
    """The words that a swept override stands for; one that is not swept stands for itself."""
    if not override.is_sweep_override():
        return [override.input_line]
    if not override.is_discrete_sweep():
        raise ConfigError(override.key_or_group, override.input_line, "must be a list, choice, range or glob of values")
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _name(swept: list[str]) -> str:
    return " ".join(swept) or "the only run"


def _scale_name(jobs: list[Job]) -> str | None:
    return next((job.config.scale.get("name") for job in jobs if job.config is not None), None)
