"""The printed values: each of the 934 cells belongs to exactly one config, and each config to one cell."""

import re
from collections import defaultdict
from functools import cache

import pytest
from composing import asked
from omegaconf import MISSING

from fedexp.config.checks import check_resolved
from fedexp.config.options import CONF
from fedexp.report import published
from fedexp.sweep.table import Measure

TABLES = sorted(path.stem for path in (CONF / "table").glob("*.yaml"))
NAMES = {"speech_commands": "kws", "image_folder": "pill"}  # printed otherwise than configured
MODELS = {  # and what stands for a printed model (conf/model/zhao2018, fedcat)
    ("zhao2018", "cifar10", "mcmahan_cnn"): "tf_cnn",
    ("fedcat", "cifar10", "mcmahan_cnn"): "simple_cnn",
    ("fedcat", "cifar100_coarse", "mcmahan_cnn"): "simple_cnn",
}
ROUNDS = {  # of FedConcat's tables: baselines, encoders, heads (and those of Fashion-MNIST)
    **dict.fromkeys(["1", "4", "5", "10", "14"], (50, 31, 200, 173)),  # section 5.1
    **dict.fromkeys(["2", "11", "13"], (100, 62, 400, 346)),  # twice that (appendix D.7)
    **dict.fromkeys(["3", "12"], (500, 480, 500, None)),  # section 5.4
    "9": (50, 231, 200, 173),  # 200 more for encoders (appendix D.4)
}


@cache
def jobs(table):
    """All runs of a table with one seed: composed once for all tests."""
    (sweep,) = asked(f"+table={table}", "table.seeds=[1]")
    return sweep.jobs


def test_every_printed_table_can_be_run():
    assert published.names() == TABLES
    assert len(TABLES) == 22
    assert sum(len(published.lines(table)) for table in TABLES) == 934


@pytest.mark.parametrize("table", published.names())
def test_cells_and_configs_map_both_ways(table):
    cells = [job for job in jobs(table) if not job.reference]
    lines = published.lines(table)
    assert [(job.name, str(job.error)) for job in jobs(table) if job.plain is None] == []
    found = {}
    for job in cells:
        printed = published.find(table, job.cell)
        assert printed.index not in found, f"{job.name} and {found.get(printed.index)} are the same printed cell"
        found[printed.index] = job.name
        assert_same(job, lines.iloc[printed.index])
        for group in {"dataset", "algorithm"} & job.cell.overrides.keys():  # by these words a cell's runs are found
            assert job.plain[group]["name"] == job.cell.overrides[group]
        assert_rounds(job, lines.iloc[printed.index])
        assert_remarks(job, lines.iloc[printed.index])
    assert sorted(found) == list(range(len(lines)))  # no printed cell is left over
    own = {id(job.cell): job.plain for job in cells}
    for job in jobs(table):
        if job.reference:  # SGD's batch is that of a round's clients together
            config = own[id(job.cell)]
            together = config["clients_per_round"] * config["local"]["batch_size"]
            assert job.plain["local"]["batch_size"] == together, job.name
    told = [(job.fingerprint, str(job.cell.measure)) for job in cells]
    assert len(set(told)) == len(told), "two cells would read the same number from the same run"


@pytest.mark.parametrize(("table", "cells"), [("cadis_1", 72), ("cadis_3", 54)])
def test_cadis_s_best_accuracies_are_of_500_rounds(table, cells):
    """On CIFAR-10 too, where 1,000 are for table 2, whose runs table 1 shares and table 3 does not."""
    assert len(jobs(table)) == cells
    for job in jobs(table):
        assert job.cell.measure == Measure("best", 500), job.name
        longer = table == "cadis_1" and job.plain["dataset"]["name"] == "cifar10"
        assert job.plain["rounds"] == (1000 if longer else 500), job.name


def test_what_is_printed_twice_from_one_run_is_the_same_number():
    """Cells of different tables may be one run, as FedCat's tables 1 and 3 are; then they have one printed value."""
    printed = defaultdict(dict)
    for table in TABLES:
        for job in jobs(table):
            if not job.reference:
                value = published.find(table, job.cell).value
                printed[job.fingerprint, str(job.cell.measure)][f"{table}: {job.name}"] = value
    shared = [cells for cells in printed.values() if len(cells) > 1]
    assert [cells for cells in shared if len(set(cells.values())) > 1] == []
    assert len(shared) == 12 + 3 * 4 * 3  # FedCat's table 3; of FedConcat's table 1 fedavg, fedconcat, fedconcat_id


def assert_same(job, line):
    """The composed config is what the printed cell says, in the values that both have."""
    config = job.plain
    check_built(config)
    dataset = config["dataset"]["name"]
    assert NAMES.get(dataset, dataset) == line.dataset, job.name
    assert config["partition"]["name"] == line.partition, job.name
    assert config["model"]["name"] == model(line), job.name
    assert config["clients"] == int(line.clients), job.name
    share = line.participants
    participants = int(line.clients) * int(share[:-1]) // 100 if share.endswith("%") else int(share)
    if job.cell.measure.kind == "information":  # one program for two of the clients and all encoders
        assert job.cell.measure.where["algorithm"] == line.algorithm
        return
    assert config["clients_per_round"] == participants, job.name
    assert config["algorithm"]["name"] == line.algorithm, job.name
    percent = line.metric.removeprefix("rounds_to_").removesuffix("_percent")
    if percent != line.metric and percent.isdigit():
        assert job.cell.measure.argument == int(percent) / 100


def model(line):
    """The model that a printed cell is run with."""
    if line.paper == "fedconcat" and line.algorithm.startswith("fedconcat"):
        return line.model.removesuffix("_wide")  # table 9: five encoders as they are are as large as the wide model
    return MODELS.get((line.paper, line.dataset, line.model), line.model)


def assert_rounds(job, line):
    """FedConcat's tables: as many rounds of both stages, or of the baselines, as the paper says."""
    if line.paper != "fedconcat" or job.cell.measure.kind == "information":
        return
    algorithm, rounds = job.plain["algorithm"], job.plain["rounds"]
    baseline, encoders, heads, on_fmnist = ROUNDS[line.table]
    if algorithm["name"].startswith("fedconcat"):
        heads = on_fmnist if line.dataset == "fmnist" else heads
        assert (algorithm["encoder_rounds"], rounds) == (encoders, encoders + heads), job.name
    else:  # centralized: epochs
        assert rounds == (200 if algorithm["name"] == "centralized" else baseline), job.name


def assert_remarks(job, line):
    """What Zhao et al. say of a cell beside its value: B, E, rounds; of data sharing beta and the warm-up model."""
    local, algorithm = job.plain["local"], job.plain["algorithm"]
    note = line.note.replace("B=50 for kws else 100", "B=large")
    batches = {"large": 50 if line.dataset == "kws" else 100, "small": 10}
    for key, value in re.findall(r"\b(B|E|rounds)=(\w+)", note):
        held = {"B": local["batch_size"], "E": local["epochs"], "rounds": job.plain["rounds"]}[key]
        assert value == "NA" or held == (batches.get(value) or int(value)), f"{job.name}: {key}={value}"
    for percent in re.findall(r"\bbeta(\d+)%", note):
        assert (algorithm["beta"], algorithm["alpha"]) == (int(percent) / 100, 1), job.name
        assert (algorithm["pretraining_epochs"] == 0) == ("from scratch" in note), job.name
        assert algorithm["pretraining_target"] == 0.6, job.name


def check_built(config):
    """Every key is an argument of its constructor, and values are possible (private pictures need a folder)."""
    if config["dataset"].get("root") == MISSING:
        config = {**config, "dataset": {**config["dataset"], "root": "pictures"}}
    check_resolved(config)
