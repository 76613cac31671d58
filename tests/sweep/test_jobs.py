"""From a command line to its runs: products of swept values, tables."""

import hydra
import pytest
from composing import asked
from omegaconf import OmegaConf

from fedexp.config import compose
from fedexp.config.compose import Composer
from fedexp.config.known import apply
from fedexp.config.options import CONF
from fedexp.errors import ConfigError
from fedexp.sweep.jobs import sweeps


def test_an_ordinary_multirun_is_a_product():
    (sweep,) = asked("algorithm=fedavg,fedcat", "clients_per_round=2,3", "seed=range(2)", "rounds=3")
    assert len(sweep.jobs) == 8
    assert sweep.jobs[0].name == "algorithm=fedavg clients_per_round=2 seed=0"
    last = sweep.jobs[-1].config
    assert (last.algorithm.name, last.clients_per_round, last.seed, last.rounds) == ("fedcat", 3, 1, 3)


def test_a_sweep_of_many_seeds_composes_each_choice_of_groups_once(monkeypatch):
    composed, made, words = [], [], ["algorithm=fedavg,fedprox,scaffold", "local.lr=0.1,0.2"]
    monkeypatch.setattr(
        compose, "compose", lambda *every, **more: composed.append(more) or hydra.compose(*every, **more)
    )
    monkeypatch.setattr(compose, "apply", lambda *every: made.append(every) or apply(*every))

    def counts(*words):
        composed.clear(), made.clear()
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            (sweep,) = sweeps(list(words), Composer())
        return len(composed), len(made), sweep

    few, many = counts(*words, "seed=range(2)"), counts(*words, "seed=range(200)")
    assert (len(few[2].jobs), len(many[2].jobs)) == (12, 1200)
    assert few[0] == many[0] <= 5  # three algorithms, and the groups' defaults
    assert many[1] - few[1] <= 198 * 4  # a seed is set once in each of these, not in every run
    job = many[2].jobs[-1]
    assert job.plain == OmegaConf.to_container(job.config, resolve=True)
    assert (job.config.algorithm.name, job.config.local.lr, job.config.seed) == ("scaffold", 0.2, 199)


def test_a_multirun_is_called_alike_whenever_its_runs_are_the_same():
    words = ["algorithm=fedavg,fedcat", "partition.alpha=0.1,0.5", "partition=dir", "rounds=3"]

    def name(*words):
        (sweep,) = asked(*words)
        (name,) = {job.config.sweep for job in sweep.jobs}
        return name

    first = name(*words)
    assert first.startswith("sweep-algorithm-partition.alpha-") and len(first.rpartition("-")[2]) == 6
    assert name(*reversed(words), "hardware.workers=2", "tracking.mode=offline", "output_root=elsewhere") == first
    assert name(*words[:-1], "rounds=4") != first
    assert name(*words[1:], "algorithm=fedavg,fedprox") != first
    assert name(*words, "sweep=mine") == "mine"
    assert len(name(*(f"{key}=0.1,0.2" for key in ("local.lr", "local.momentum", "local.weight_decay")))) <= 53


def test_the_sweep_s_name_is_no_part_of_a_run_s():
    (sweep,) = asked("algorithm=fedavg,fedcat", "rounds=3")
    (alone,) = asked("algorithm=fedcat", "rounds=3")
    assert sweep.jobs[1].config.sweep != alone.jobs[0].config.sweep
    assert sweep.jobs[1].fingerprint == alone.jobs[0].fingerprint


def test_the_command_line_wins_over_the_table():
    (sweep,) = asked("+table=fedcat_3", 'table.select="cifar10 dir0.1 fed(avg|cat)$"', "seed=5,6", "clients=50")
    assert [job.config.seed for job in sweep.jobs] == [5, 6, 5, 6]
    assert {job.config.clients for job in sweep.jobs} == {50}
    assert {job.protocol["clients"] for job in sweep.jobs} == {100}


def test_the_command_line_is_no_part_of_the_protocol_of_a_scaled_table_either():
    words = ["+table=fedcat_3", "+scale=quick", 'table.select="cifar10 dir0.1 fedavg"']
    (asked_for,), (plain,) = asked(*words, "local.lr=7"), asked(*words)
    for job, same in zip(asked_for.jobs, plain.jobs):
        own = {key: value for key, value in same.plain.items() if key not in ("seed", "table")}
        assert job.plain["local"]["lr"] == 7
        assert {key: job.protocol[key] for key in own} == own


@pytest.mark.parametrize("word", ["algorithm=fedcat", "partition=iid", "algorithm=fedavg,fedcat"])
def test_one_run_does_not_stand_for_cells_that_differ_in_it(word):
    key, _, value = word.partition("=")
    with pytest.raises(ConfigError, match=f"^{word}: the cells of fedcat_1 differ in it; .* table.select$"):
        asked("+table=fedcat_1", word)
    (sweep,) = asked("+table=fedcat_1", word, 'table.select="cifar10 dir0.1 fedavg"')
    assert {job.plain[key]["name"] for job in sweep.jobs} == set(value.split(","))


def test_seeds_given_twice_are_refused():
    with pytest.raises(ConfigError, match=r"^table.seeds=\[7\]: has no effect beside seed$"):
        asked("+table=fedcat_3", "table.seeds=[7]", "seed=5")


def test_two_tables_share_their_runs():
    first, third = asked("+table=fedcat_1,fedcat_3", 'table.select="cifar10 dir0.1 fedavg"')
    assert [job.fingerprint for job in first.jobs] == [job.fingerprint for job in third.jobs]


@pytest.mark.parametrize("seeds", ["1.5", "few", "true"])
def test_a_scale_has_a_whole_number_of_seeds(seeds):
    with pytest.raises(ConfigError, match=f"scale.seeds={seeds}: must be a whole number"):
        asked("+table=fedcat_3", "+scale=quick", f"scale.seeds={seeds}")


def test_keys_of_no_table_are_refused():
    with pytest.raises(ConfigError, match="no table is chosen"):
        asked("table.seeds=[1]")


def test_a_glob_leaves_out_options_of_one_s_own():
    (sweep,) = asked("compression=glob(*)")
    assert [job.name for job in sweep.jobs if "own" in job.name] == [] and len(sweep.jobs) > 3
