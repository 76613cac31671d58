"""Any runs beside each other: what differs in effect names them, and what came out of them stands first."""

import io
import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
from composing import asked
from recorded import leave_run
from rich.console import Console

from fedexp.config.saved import saved
from fedexp.errors import ConfigError
from fedexp.report.any_runs import by_data_set, compare_runs
from fedexp.report.folders import read
from fedexp.report.page import NOTHING
from fedexp.report.writers import html, latex, markdown, terminal, write

PARTITION = "client,class_0,class_1\n0,7,0\n1,2,5\n"


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Two algorithms, two learning rates, two seeds; written once for all tests here."""
    root = tmp_path_factory.mktemp("left")
    (sweep,) = asked("algorithm=fedavg,fedcat", "local.lr=0.1,0.2", "seed=0,1", f"output_root={root}")
    for number, job in enumerate(sweep.jobs):
        (leave_run(job, [0.1, 0.5 + 0.02 * number]) / "partition.csv").write_text(PARTITION)
    return root


@pytest.fixture
def outputs(left, tmp_path):
    """The same, to be added to."""
    shutil.copytree(left, tmp_path, dirs_exist_ok=True)
    return tmp_path


def compared(root, **asked_for):
    return compare_runs(read(root), **asked_for)


def labels(page, sheet=0):
    return [row[0].main for row in page.sheets[sheet].rows]


def values(page, label, sheet=0):
    (row,) = [row for row in page.sheets[sheet].rows if row[0].main == label]
    return dict(zip(page.sheets[sheet].header, (entry.main for entry in row)))


def titled(page, title):
    return next(number for number, sheet in enumerate(page.sheets) if sheet.title.startswith(title))


def test_what_differs_names_the_line_and_results_come_first(left):
    page = compared(left)
    assert labels(page) == ["fedcat, lr=0.2", "fedcat, lr=0.1", "fedavg, lr=0.2", "fedavg, lr=0.1"]
    assert page.sheets[0].header == ["", "final, %", "best, %", "rounds", "MB", "runs", "algorithm", "local.lr"]
    assert page.sheets[0].narrow().header[-1] == "runs"
    best = values(page, "fedcat, lr=0.2")
    assert best["final, %"] == best["best, %"] == "63.00 ± 1.41"  # seeds 62 % and 64 %
    assert (best["rounds"], best["MB"], best["runs"]) == ("60", "60.0", "2")
    assert len(page.records) == 8


def test_runs_of_several_seeds_on_one_partition_have_a_line_of_their_own(tmp_path):
    for own in ([], ["partition.seed=3"]):
        (sweep,) = asked("partition=dir0.1", "seed=0,1,2", *own, f"output_root={tmp_path}")
        for job in sweep.jobs:
            leave_run(job, [0.1, 0.6])
    page = compared(tmp_path)
    assert sorted(labels(page)) == ["dir0.1", "dir0.1 partition.seed=3"]
    assert all(values(page, label)["runs"] == "3" for label in labels(page))


def test_numbers_are_whole_in_eighty_columns(tmp_path):
    """Four algorithms, of which one in two settings of its own, and three seeds."""
    words = ["seed=0,1,2", "evaluate.clients=all", f"output_root={tmp_path}"]
    fedprox = ["algorithm=fedprox", "algorithm.mu=0.001,0.123456789"]
    of_clients = {"client_accuracy_mean": 0.5, "client_accuracy_worst10": 0.25}
    for own in (["algorithm=fedavg,fedcat,scaffold"], fedprox):
        (sweep,) = asked(*own, *words)
        for number, job in enumerate(sweep.jobs):
            leave_run(job, [0.1, 0.6 + 0.07 * number % 0.3], columns=of_clients)
    page = compared(tmp_path)
    assert {*labels(page)} == {"fedavg", "fedcat", "scaffold", "fedprox mu=0.001", "fedprox mu=0.123456789"}
    console = Console(width=80, file=io.StringIO(), highlight=False)
    terminal(page, console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for sheet in page.sheets:
        for row in sheet.narrow().rows:
            assert any(all(entry.main in line for entry in row[1:]) for line in lines), row
    clients = values(page, "fedavg", titled(page, "Accuracy of clients"))
    assert (clients["mean, %"], clients["worst tenth, %"]) == ("50.00 ± 0.00", "25.00 ± 0.00")


def test_the_two_best_of_each_problem_are_marked(tmp_path):
    (sweep,) = asked("partition=dir0.1,iid", "algorithm=fedavg,fedcat,scaffold", f"output_root={tmp_path}")
    for job, final in zip(sweep.jobs, (0.3, 0.4, 0.5, 0.9, 0.8, 0.7)):
        leave_run(job, [final])
    page = compared(tmp_path)
    marks = {row[0].main: row[1].mark for row in page.sheets[0].rows}
    assert marks == {
        "dir0.1, scaffold": "best", "dir0.1, fedcat": "second", "dir0.1, fedavg": "",
        "iid, fedavg": "best", "iid, fedcat": "second", "iid, scaffold": "",
    }  # fmt: skip
    assert "dir0.1, scaffold & \\textbf{50.00} & \\textbf{50.00}" in latex(page)
    assert "iid, fedcat & \\underline{80.00}" in latex(page)


def test_settings_and_partitions_are_crossed_as_papers_print_them(tmp_path):
    (sweep,) = asked("partition=dir0.1,iid", "algorithm=fedavg,fedcat,scaffold", "seed=0,1", f"output_root={tmp_path}")
    for number, job in enumerate(sweep.jobs[:-2]):  # SCAFFOLD was not run on the last partition
        leave_run(job, [0.3 + 0.05 * number], columns={"client_accuracy_mean": 0.9})
    page = compared(tmp_path)
    of_clients = page.sheets[2]
    assert of_clients.title == "Mean accuracy of clients by data set and partition"
    assert [entry.main for entry in of_clients.rows[0]] == ["scaffold", "90.00 ± 0.00", NOTHING]
    (crossed,) = [sheet for sheet in page.sheets if sheet.title == "Final accuracy by data set and partition"]
    assert crossed.header == ["", "dir0.1", "iid"]
    assert [[(entry.main, entry.mark) for entry in row] for row in crossed.rows] == [
        [("scaffold", ""), ("52.50 ± 3.54", "best"), (NOTHING, "")],
        [("fedcat", ""), ("42.50 ± 3.54", "second"), ("72.50 ± 3.54", "best")],
        [("fedavg", ""), ("32.50 ± 3.54", ""), ("62.50 ± 3.54", "")],
    ]
    few = compare_runs([run for run in read(tmp_path) if run.name("algorithm") == "fedcat"])
    assert "Final accuracy by data set and partition" not in [sheet.title for sheet in few.sheets]


def test_incomplete_runs_are_in_no_difference_and_set_no_target(tmp_path):
    """FedCat stopped early in both seeds; FedProx has finished."""
    (sweep,) = asked("algorithm=fedavg,fedcat,fedprox", "seed=0,1", "rounds=3", f"output_root={tmp_path}")
    finals = (0.5, 0.6, 0.9, 0.9, 0.6, 0.8)
    for job, final in zip(sweep.jobs, finals):
        leave_run(job, [final], status="interrupted" if job.plain["algorithm"]["name"] == "fedcat" else "finished")
    sheet = compared(tmp_path).sheets[titled(compared(tmp_path), "Final accuracy minus that of fedavg")]
    assert [row[0].main for row in sheet.rows] == ["fedprox"]
    assert sheet.caption.endswith("Left out because no complete run of fedavg can be paired with one of theirs: 1.")
    page = compared(tmp_path, baseline="fedcat")
    sheet = page.sheets[titled(page, "Final accuracy minus that of fedcat")]
    assert {row[1].main for row in sheet.rows} == {NOTHING}
    assert not any("Until 90 %" in sheet.title for sheet in page.sheets)


def test_equal_differences_have_no_interval(tmp_path):
    """Both are one test example of 360 ahead: the interval would have no width, and exclude 0."""
    (sweep,) = asked("algorithm=fedavg,fedcat,fedprox", "seed=0,1", f"output_root={tmp_path}")
    for job, right in zip(sweep.jobs, (301, 311, 302, 312, 301, 311)):
        leave_run(job, [right / 360])
    page = compared(tmp_path)
    sheet = titled(page, "Final accuracy minus that of fedavg")
    fedcat, fedprox = (values(page, name, sheet) for name in ("fedcat", "fedprox"))
    assert (fedcat["points"], fedcat["95% interval"], fedcat["excludes 0"]) == ("+0.28", NOTHING, NOTHING)
    assert (fedprox["points"], fedprox["95% interval"], fedprox["excludes 0"]) == ("+0.00", NOTHING, "no")
    assert "also differs in" not in fedcat  # a column for those that do


def test_what_was_only_measured_parts_no_seeds(tmp_path):
    """Seed 1 was run later, with a target, another measure and all clients evaluated: it is the same setting."""
    (sweep,) = asked("algorithm=fedavg,fedcat", "seed=0,1", f"output_root={tmp_path}")
    watched = {"targets": [0.1], "measures.cohort_emd": None, "reference": "centralized", "evaluate.clients": "all"}
    for job, final in zip(sweep.jobs, (0.5, 0.7, 0.6, 0.9)):
        later = job.plain["seed"] == 1
        columns = {"client_accuracy_mean": 0.4, "client_accuracy_worst10": 0.1} if later else None
        leave_run(job, [final], columns=columns, **(watched if later else {}))
    page = compared(tmp_path)
    assert page.title == "4 runs, 2 settings" and page.lead[0].endswith("They differ in: algorithm.")
    assert values(page, "fedcat")["final, %"] == "75.00 ± 21.21"
    paired = values(page, "fedcat", titled(page, "Final accuracy minus that of fedavg"))
    assert (paired["points"], paired["pairs"]) == ("+15.00", "2")
    sheet = titled(page, "Accuracy of clients")
    assert page.sheets[sheet].caption.endswith("(evaluate.on: matched).")
    assert [*values(page, "fedcat", sheet).values()] == ["fedcat", "40.00", "10.00", "1 of 2"]


def test_the_accuracy_of_participants_is_not_said_to_be_that_of_all_clients(tmp_path):
    columns = {"client_accuracy_mean": 0.4, "client_accuracy_worst10": 0.1}
    for clients in ("all", "participants"):
        (sweep,) = asked("algorithm=fedavg,fedcat", f"output_root={tmp_path / clients}")
        for job in sweep.jobs:
            leave_run(job, [0.5], columns=columns, **{"evaluate.clients": clients})
        page = compared(tmp_path / clients)
        caption = page.sheets[titled(page, "Accuracy of clients")].caption
        assert ("of the last evaluated round's clients alone" in caption) == (clients == "participants")


def test_clients_evaluated_in_two_ways_are_two_settings(tmp_path):
    (sweep,) = asked("seed=0,1", f"output_root={tmp_path}")
    for job, clients in zip(sweep.jobs, ("participants", "all")):
        leave_run(job, [0.5], columns={"client_accuracy_mean": 0.4}, **{"evaluate.clients": clients})
    assert sorted(labels(compared(tmp_path))) == ["clients=all", "clients=participants"]


def test_of_a_run_measured_twice_the_one_that_measured_more_is_shown(tmp_path):
    (sweep,) = asked("seed=0,1,2", f"output_root={tmp_path}")
    for job in sweep.jobs:
        leave_run(job, [0.5])
        leave_run(job, [0.5], columns={"client_accuracy_mean": 0.4}, **{"evaluate.clients": "all"})
    page = compared(tmp_path)
    assert page.title == "3 runs, 1 setting"
    assert values(page, "fedavg", titled(page, "Accuracy of clients"))["mean, %"] == "40.00 ± 0.00"
    why = "because others here have the same settings and seed, or differ from them only in what was measured"
    assert page.lead[-1] == f"Left out, {why}: 3 runs."


def test_a_run_whose_clients_were_evaluated_is_shown_rather_than_one_that_measured_less(tmp_path):
    (sweep,) = asked("seed=0,1", f"output_root={tmp_path}")
    for job in sweep.jobs:
        leave_run(job, [0.5], columns={"client_accuracy_mean": 0.4}, **{"evaluate.clients": "all"})
        leave_run(job, [0.5], **{"measures.divergence": None, "measures.cohort_emd": None, "targets": [0.3]})
    assert values(compared(tmp_path), "fedavg", titled(compared(tmp_path), "Accuracy of clients"))["mean, %"] == (
        "40.00 ± 0.00"
    )


def test_the_way_to_a_target(tmp_path):
    """Accuracies of rounds 1, 2, 3; a round takes 1 MB and a second, or 7 simulated ones."""
    (sweep,) = asked("algorithm=fedavg,fedcat", "seed=0,1", "rounds=3", f"output_root={tmp_path}")
    for job, accuracies in zip(sweep.jobs, ([0.1, 0.5, 0.7], [0.1, 0.2, 0.9], [0.1, 0.2, 0.3], [0.6, 0.6, 0.6])):
        leave_run(job, accuracies, columns={"seconds": 7})
    page = compared(tmp_path, targets=[0.5, 0.65])
    half = titled(page, "Until 50 %")
    assert values(page, "fedavg", half) == {
        "": "fedavg", "rounds": "2.5 ± 0.7", "MB": "2.5 ± 0.7", "seconds": "7.0 ± 0.0", "runs": "2 of 2",
    }  # fmt: skip
    assert values(page, "fedcat", half)["rounds"] == "1.0" and values(page, "fedcat", half)["runs"] == "1 of 2"
    assert values(page, "fedcat", titled(page, "Until 65 %"))["rounds"] == NOTHING
    assert "Until 80 % is reached" in [sheet.title for sheet in compared(tmp_path).sheets]  # fedavg's best
    with pytest.raises(ConfigError, match=r"targets=80.0: must be a fraction"):
        compared(tmp_path, targets=[80.0])


def test_time_is_a_simulation_s_where_there_is_one(tmp_path):
    (sweep,) = asked("rounds=2", "targets=[0.5]", f"output_root={tmp_path}")
    leave_run(sweep.jobs[0], [0.2, 0.6], columns={"simulated_seconds": 42})
    page = compared(tmp_path)
    assert values(page, "fedavg", titled(page, "Until 50 %"))["simulated s"] == "42.0"
    (other,) = asked("rounds=2", "algorithm=fedcat", "targets=[0.5]", f"output_root={tmp_path}")
    leave_run(other.jobs[0], [0.2, 0.7])  # the same, without a simulation: its seconds are of another kind
    page = compared(tmp_path)
    assert values(page, "fedcat", titled(page, "Until 50 %"))["simulated s"] == NOTHING
    seconds = page.pictures[0].draw().axes[2]
    assert seconds.get_xlabel() == "seconds of a simulated network and its devices"
    drawn = {line.get_label(): np.isfinite(line.get_xdata()).all() for line in seconds.get_lines()}
    assert drawn == {"fedavg": True, "fedcat": False}


def test_differences_from_a_baseline_are_paired_by_seed(tmp_path):
    """FedCat is 10 and 12 points ahead of FedAvg in the same seeds: 11 ± t(0.975, 1) * 1.414 / sqrt(2); SCAFFOLD 0."""
    (sweep,) = asked("algorithm=fedavg,fedcat,scaffold", "seed=0,1", f"output_root={tmp_path}")
    for job, final in zip(sweep.jobs, (0.40, 0.60, 0.50, 0.72, 0.39, 0.61)):
        leave_run(job, [final])
    page = compared(tmp_path)
    sheet = titled(page, "Final accuracy minus that of fedavg")
    line = values(page, "fedcat", sheet)
    reach = 12.7062 * math.sqrt(2) / math.sqrt(2)
    assert (line["points"], line["pairs"], line["excludes 0"]) == ("+11.00", "2", "no")
    assert line["95% interval"] == f"{11 - reach:+.2f} to {11 + reach:+.2f}"
    (more,) = asked("algorithm=fedavg,fedcat", "seed=2,3,4", f"output_root={tmp_path}")
    for job, final in zip(more.jobs, (0.40, 0.60, 0.50, 0.51, 0.72, 0.61)):
        leave_run(job, [final])
    line = values(compared(tmp_path), "fedcat", sheet)  # 10, 12, 11, 12, 11
    assert (line["points"], line["excludes 0"], line["pairs"]) == ("+11.20", "yes", "5")
    other = compared(tmp_path, baseline="scaffold")
    assert labels(other, sheet) == ["fedcat", "fedavg"]
    with pytest.raises(ConfigError, match=r"baseline=fedavgg: is not among what is compared; did you mean fedavg\?"):
        compared(tmp_path, baseline="fedavgg")


def test_a_baseline_sets_the_target_however_it_is_named(tmp_path):
    """Its best is 50 %; that of the group in the middle would be 70 %."""
    (sweep,) = asked("algorithm=fedavg,fedcat,fedprox", f"output_root={tmp_path}")
    for job, final in zip(sweep.jobs, (0.5, 0.7, 0.9)):
        leave_run(job, [final])
    for baseline in ("fedavg", "algorithm=fedavg"):
        assert titled(compared(tmp_path, baseline=baseline), "Until 50 % is reached")


def test_a_value_that_several_keys_have_is_no_baseline(tmp_path):
    (sweep,) = asked("local.lr=0.1,0.2", "local.momentum=0.1,0.2", f"output_root={tmp_path}")
    for job in sweep.jobs:
        leave_run(job, [0.5])
    with pytest.raises(ConfigError, match=r"baseline=0.1: .* give one of local.lr=0.1, local.momentum=0.1"):
        compared(tmp_path, baseline="0.1")
    assert compared(tmp_path, baseline="local.lr=0.1").sheets[-1].title.endswith("minus that of local.lr=0.1")


@pytest.mark.parametrize("baseline", ["iid", "partition=iid"])
def test_a_partition_is_no_baseline(tmp_path, baseline):
    (sweep,) = asked("algorithm=fedavg,fedcat", "partition=iid,dir0.1", f"output_root={tmp_path}")
    for job in sweep.jobs:
        leave_run(job, [0.5])
    with pytest.raises(ConfigError, match=f"baseline={baseline}: cannot be the baseline: runs are compared within"):
        compared(tmp_path, baseline=baseline)


def test_any_other_key_can_be_the_baseline(left):
    page = compared(left, baseline="local.lr=0.1")
    assert labels(page, titled(page, "Final accuracy minus that of local.lr=0.1")) == [
        "fedcat, lr=0.2",
        "fedavg, lr=0.2",
    ]


def test_a_setting_at_its_default_is_shown_with_its_value(tmp_path):
    (sweep,) = asked("algorithm=fedprox", "algorithm.mu=0.01,0.1", f"output_root={tmp_path}")
    for job in sweep.jobs:
        leave_run(job, [0.5])
    (other,) = asked("algorithm=fedprox", "server_optimizer.lr=0.5", f"output_root={tmp_path}")
    leave_run(other.jobs[0], [0.4])
    assert sorted(labels(compared(tmp_path))) == [
        "fedprox mu=0.01, sgd lr=0.5", "fedprox mu=0.01, sgd lr=1.0", "fedprox mu=0.1, sgd lr=1.0",
    ]  # fmt: skip


def test_an_algorithm_s_key_names_it_only_where_it_varies_within_that_algorithm(tmp_path):
    """FedAvg has no epsilon, uniform selection no distance; where one name stands for several, the key is said."""
    parts = "selection=uniform,clusamp", "algorithm=fedavg,fedcat", "partition=dir0.1,dir0.5"
    (sweep,) = asked(*parts, "clients_per_round=2", f"output_root={tmp_path}")
    for job in sweep.jobs:
        leave_run(job, [0.5])
    found = labels(compared(tmp_path))
    assert "dir0.1, fedcat, uniform" in found and "dir0.5, fedavg, clusamp" in found and len(found) == 8
    (other,) = asked("algorithm=fedcat", "algorithm.epsilon=0.9", "clients_per_round=2", f"output_root={tmp_path}")
    leave_run(other.jobs[0], [0.5])
    found = labels(compared(tmp_path))
    assert "dir0.1, fedcat epsilon=0.9, uniform" in found and "dir0.1, fedcat epsilon=0.5, clusamp" in found
    assert "dir0.1, fedavg, uniform" in found


def test_what_follows_from_the_algorithm_is_told_once_and_paired_all_the_same(tmp_path):
    """FedAdam has a server optimizer of its own and one run another learning rate: names need neither."""
    (sweep,) = asked("algorithm=fedavg,fedadam,fedprox", "seed=0,1", f"output_root={tmp_path}")
    (own,) = asked("algorithm=moon", "local.lr=0.02", "seed=0,1", f"output_root={tmp_path}")
    for job, final in zip([*sweep.jobs, *own.jobs], (0.4, 0.5, 0.5, 0.6, 0.3, 0.5, 0.6, 0.8)):
        leave_run(job, [final])
    page = compared(tmp_path)
    assert labels(page) == ["moon", "fedadam", "fedavg", "fedprox"]
    server, rate = "server_optimizer: adam for fedadam; otherwise sgd.", "local.lr: 0.02 for moon; otherwise 0.1."
    assert page.lead[1:] == [server, rate]
    sheet = titled(page, "Final accuracy minus that of fedavg")
    assert [values(page, name, sheet)["points"] for name in labels(page, sheet)] == ["+25.00", "+10.00", "-5.00"]
    others = [values(page, name, sheet)["also differs in"] for name in labels(page, sheet)]
    assert others == ["local.lr=0.02, not 0.1", "server_optimizer=adam, not sgd", NOTHING]
    assert set(page.records["local.lr"]) == {"0.1", "0.02"}
    (grid,) = asked("algorithm=fedadam", "local.lr=0.02", "seed=0", f"output_root={tmp_path}")
    leave_run(grid.jobs[0], [0.2])
    found = labels(compared(tmp_path))
    assert found == ["moon, lr=0.02", "fedadam, lr=0.1", "fedavg, lr=0.1", "fedprox, lr=0.1", "fedadam, lr=0.02"]


def test_names_do_not_repeat_what_nearly_all_have_in_common(tmp_path):
    """Four of five settings do not clip gradients; the fifth says that it does."""
    (sweep,) = asked("local.lr=0.1,0.2,0.3,0.4", f"output_root={tmp_path}")
    (own,) = asked("local.lr=0.1", "local.max_grad_norm=1", f"output_root={tmp_path}")
    for number, job in enumerate([*sweep.jobs, *own.jobs]):
        leave_run(job, [0.5 + 0.01 * number])
    page = compared(tmp_path)
    assert labels(page) == ["lr=0.1, max_grad_norm=1.0", "lr=0.4", "lr=0.3", "lr=0.2", "lr=0.1"]
    assert "Names leave out local.max_grad_norm where it is null." in page.lead
    assert set(page.records["local.max_grad_norm"]) == {"null", "1.0"}


def test_settings_without_a_run_to_be_paired_with_are_counted(tmp_path):
    """Of three partitions FedAvg ran on two; where it ran on none of them, the settings are listed without a value."""
    (fedcat,) = asked("algorithm=fedcat", "partition=dir0.1,dir0.5,dir1.0", f"output_root={tmp_path}")
    (fedavg,) = asked("algorithm=fedavg", "partition=dir0.1,dir0.5,iid", f"output_root={tmp_path}")
    for job in [*fedcat.jobs, *fedavg.jobs[2:]]:
        leave_run(job, [0.6])
    page = compared(tmp_path)
    sheet = page.sheets[titled(page, "Final accuracy minus that of fedavg")]
    assert [row[1].main for row in sheet.rows] == [NOTHING] * 3
    assert sheet.caption.endswith(" No complete run of fedavg can be paired with one of theirs.")
    for job in fedavg.jobs[:2]:
        leave_run(job, [0.5])
    page = compared(tmp_path)
    sheet = page.sheets[titled(page, "Final accuracy minus that of fedavg")]
    assert {row[0].main: row[1].main for row in sheet.rows} == {"dir0.1, fedcat": "+10.00", "dir0.5, fedcat": "+10.00"}
    assert sheet.caption.endswith(" Left out because no complete run of fedavg can be paired with one of theirs: 1.")


def test_keys_that_vary_alike_are_told_in_one_sentence(tmp_path):
    """Two protocols differ in many keys at once, also in how pictures are prepared: names need none of these."""
    one = ["algorithm=fedavg,fedcat", "clients=100"]
    other = ["algorithm=fedprox", "clients=40", "local.batch_size=64", "dataset.transform.flip=true"]
    for words in (one, other):
        (sweep,) = asked(*words, f"output_root={tmp_path}")
        for job in sweep.jobs:
            leave_run(job, [0.5])
    page = compared(tmp_path)
    assert {*labels(page)} == {"fedavg, clients=100", "fedcat, clients=100", "fedprox, clients=40"}
    told = "local.batch_size / dataset.transform.flip: 64 / true for fedprox, clients=40; otherwise 10 / false."
    assert page.lead[1:] == [told]


def test_how_pictures_are_prepared_makes_no_other_problem(tmp_path):
    (sweep,) = asked("dataset.transform.flip=true,false", "algorithm=fedavg,fedcat", f"output_root={tmp_path}")
    for job, final in zip(sweep.jobs, (0.5, 0.6, 0.7, 0.8)):
        leave_run(job, [final])
    page = compared(tmp_path)
    assert labels(page) == ["fedcat, flip=false", "fedavg, flip=false", "fedcat, flip=true", "fedavg, flip=true"]
    assert [row[1].mark for row in page.sheets[0].rows] == ["best", "second", "", ""]


def test_problems_that_are_not_pictured_have_the_fewest_settings_and_are_named(tmp_path):
    (sweep,) = asked("partition=iid,shards1,shards2,dir0.1,dir0.5,dir1.0,classes2", f"output_root={tmp_path}")
    (further,) = asked("partition=shards2", "algorithm=fedprox", f"output_root={tmp_path}")
    for job in [*sweep.jobs, *further.jobs]:
        leave_run(job, [0.5])
    page = compared(tmp_path)
    names = [picture.name for picture in page.pictures if picture.name.startswith("accuracy")]
    assert len(names) == 6 and "accuracy_shards2" in names and "accuracy_shards1" not in names
    assert page.notes == [
        "There are pictures of the 6 data sets and partitions with the most settings, and none of shards1."
    ]


def test_one_run_carried_out_twice_as_far_is_a_line_of_its_own(tmp_path):
    for rounds, accuracy in ((4, 0.4), (8, 0.8)):
        (sweep,) = asked(f"rounds={rounds}", f"output_root={tmp_path / str(rounds)}")
        leave_run(sweep.jobs[0], [accuracy])
    page = compare_runs(read(tmp_path / "4", tmp_path / "8"))
    assert [[entry.main for entry in row[:2]] for row in page.sheets[0].rows] == [
        ["rounds=8", "80.00"], ["rounds=4", "40.00"],
    ]  # fmt: skip


def test_folders_of_one_name_in_two_places_keep_their_numbers(tmp_path):
    for rounds, accuracies in ((2, [0.1, 0.3]), (4, [0.1, 0.2, 0.3, 0.4])):
        (sweep,) = asked(f"rounds={rounds}", f"output_root={tmp_path / str(rounds)}")
        leave_run(*sweep.jobs, accuracies)
    page = compare_runs(read(tmp_path / "2", tmp_path / "4"), targets=[0.25])
    assert page.records["run"].nunique() == 1
    assert page.records[["rounds", "rounds_to_0.25"]].to_numpy().tolist() == [[4, 3.0], [2, 2.0]]


def test_a_finished_run_that_is_being_carried_on_is_read_as_it_ended(tmp_path):
    """Its config and metrics.csv are those of more rounds already; result.json is written at the end."""
    (sweep,) = asked("rounds=4", "evaluate.clients=all", f"output_root={tmp_path}")
    folder = leave_run(*sweep.jobs, [0.1, 0.2, 0.3, 0.4], columns={"client_accuracy_mean": 0.25})
    told = json.loads((folder / "result.json").read_text())
    rows = pd.read_csv(folder / "metrics.csv")
    rows.loc[2:, "client_accuracy_mean"] = 0.75
    rows.to_csv(folder / "metrics.csv", index=False)
    (folder / "result.json").write_text(json.dumps({**told, "rounds": 2, "final_accuracy": 0.2, "best_accuracy": 0.2}))
    page = compared(tmp_path)
    assert page.records[["rounds", "final_accuracy"]].to_numpy().tolist() == [[2, 0.2]]
    text = markdown(page)
    assert "25.00" in text and "75.00" not in text and "40.00" not in text


def test_what_is_incomplete_is_not_averaged(outputs):
    (sweep,) = asked("algorithm=fedcat", "local.lr=0.2", "seed=2,3", f"output_root={outputs}")
    folder = leave_run(sweep.jobs[0], [0.9], status="interrupted")
    (other,) = asked("algorithm=scaffold", f"output_root={outputs}")
    leave_run(other.jobs[0], [0.95], status="interrupted")
    page = compared(outputs)
    assert values(page, "fedcat, lr=0.2")["final, %"] == "63.00 ± 1.41"
    assert values(page, "fedcat, lr=0.2")["runs"] == "2 of 3"
    assert f"{folder.name}: interrupted." in page.notes
    assert labels(page)[-1] == "scaffold, lr=0.1", "what is complete comes first"


def test_what_a_failed_run_was_at_is_no_final_accuracy(tmp_path):
    (sweep,) = asked("algorithm=fedavg,fedprox", "partition=dir0.1,dir0.5", f"output_root={tmp_path}")
    for job in sweep.jobs:
        failed = job.config.algorithm.name == "fedprox" and job.config.partition.name == "dir0.5"
        leave_run(job, [0.99 if failed else 0.7], status="failed" if failed else "finished")
    page = compared(tmp_path)
    grid = page.sheets[titled(page, "Final accuracy by data set and partition")]
    assert sorted(entry.main for row in grid.rows for entry in row[1:]) == ["70.00"] * 3 + [NOTHING]
    (heat,) = [each.chart()["data"][0] for each in page.pictures if each.chart()["data"][0].get("type") == "heatmap"][
        :1
    ]
    assert np.nanmax(heat["z"]) == pytest.approx(70)


def test_without_a_complete_run_there_is_no_map(tmp_path):
    (sweep,) = asked("algorithm=fedavg,fedprox", "local.lr=0.1,0.2", f"output_root={tmp_path}")
    for job in sweep.jobs:
        leave_run(job, [0.5], status="failed")
    assert not [each for each in compared(tmp_path).pictures if each.chart()["data"][0].get("type") == "heatmap"]


def test_an_own_class_under_another_ones_name_has_a_line_of_its_own(tmp_path):
    words = ["seed=0,1", f"output_root={tmp_path}"]
    for own in ([], ["algorithm._target_=fedexp.algorithms.fedrs.FedRS"]):
        (sweep,) = asked("algorithm=fedavg", *own, *words)
        for job in sweep.jobs:
            leave_run(job, [0.5])
    page = compared(tmp_path)
    assert sorted(labels(page)) == ["fedavg _target_=FedAvg", "fedavg _target_=FedRS"]
    assert [values(page, label)["runs"] for label in labels(page)] == ["2", "2"]


def test_a_copy_of_a_run_is_no_other_seed(left, tmp_path):
    shutil.copytree(left, tmp_path, dirs_exist_ok=True)
    page = compare_runs(read(left, tmp_path))
    assert len(page.records) == 8
    assert {values(page, label)["runs"] for label in labels(page)} == {"2"}


def test_a_model_that_ended_at_chance_is_noted(outputs):
    (sweep,) = asked("algorithm=scaffold", f"output_root={outputs}")
    file = leave_run(sweep.jobs[0], [0.1]) / "result.json"
    file.write_text(file.read_text().replace('"status"', '"at_chance": true, "status"'))
    (note,) = compared(outputs).notes
    assert note == f"{file.parent.name}: its global model ended at the accuracy of chance."


def test_a_run_that_diverged_is_said_to_have_diverged(outputs):
    """It may have learned before: that it ended at chance, as diverged models do, says nothing about that."""
    (sweep,) = asked("algorithm=scaffold", f"output_root={outputs}")
    file = leave_run(sweep.jobs[0], [0.7, 0.1], status="diverged", rounds=20) / "result.json"
    file.write_text(file.read_text().replace('"status"', '"at_chance": true, "status"'))
    (note,) = compared(outputs).notes
    assert note == f"{file.parent.name}: diverged, and ended with round 20."


def test_what_is_not_known_is_left_open(outputs):
    (sweep,) = asked("algorithm=scaffold", f"output_root={outputs}")
    (leave_run(sweep.jobs[0], [0.9]) / "result.json").unlink()
    page = compared(outputs)
    line = values(page, labels(page)[-1])
    assert (line["rounds"], line["MB"], line["final, %"], line["runs"]) == (NOTHING, NOTHING, NOTHING, "0 of 1")


def test_a_run_named_twice_is_one(left):
    folder = next(path for path in left.iterdir() if "fedcat" in path.name)
    assert len(read(left, folder, left / ".")) == 8


@pytest.mark.parametrize("text", ["[]", "null", "{"])
def test_a_damaged_result_is_a_run_that_is_not_complete(outputs, text):
    folder = next(path for path in outputs.iterdir() if "fedcat" in path.name)
    (folder / "result.json").write_text(text)
    assert sorted(run.complete for run in read(outputs)) == [False] + [True] * 7


@pytest.mark.parametrize(
    "text", [
        None, "", "round,test_accuracy\n", "a,b\n1,2\n", "round,test_accuracy\n59,0.1\n", "round,test_accuracy\n60,0.1",
        "round,test_accuracy\n60\n", "round,test_accuracy\nlast,0.1\n",
    ],
)  # fmt: skip
def test_a_run_whose_metrics_are_gone_is_not_complete(outputs, text):
    folder = next(path for path in outputs.iterdir() if "fedcat" in path.name)
    (folder / "metrics.csv").unlink()
    if text is not None:
        (folder / "metrics.csv").write_text(text)
    assert sorted(run.complete for run in read(outputs)) == [False] + [True] * 7
    assert f"{folder.name}: its metrics.csv cannot be read." in compared(outputs).notes


@pytest.mark.parametrize("damaged", ["0.x9", ""])
def test_a_damaged_row_in_the_middle_reached_no_target_that_is_known(tmp_path, damaged):
    (sweep,) = asked("seed=0,1", "rounds=3", f"output_root={tmp_path}")
    first, _ = (leave_run(job, [0.1, 0.9, 0.95]) for job in sweep.jobs)
    metrics = first / "metrics.csv"
    metrics.write_text(metrics.read_text().replace("2,0.9,", f"2,{damaged},"))
    page = compared(tmp_path, targets=[0.8])
    line = values(page, "fedavg", titled(page, "Until 80 %"))
    assert (line["rounds"], line["runs"]) == ("2.0", "1 of 1")
    assert page.notes == [
        f"{first.name}: its metrics.csv is damaged, so that it is not known when it reached a target."
    ]


def test_partitions_whose_files_would_have_one_name_or_too_long_a_one_have_a_picture_each(tmp_path):
    names = ["a/b", "a_b", "c" * 300]
    for number, name in enumerate(names):
        (sweep,) = asked("partition=dir", f"partition.alpha={number + 1}", f"output_root={tmp_path / str(number)}")
        folder = leave_run(*sweep.jobs, [0.5], **{"partition.name": name})
        (folder / "partition.csv").write_text(PARTITION)
    page = compare_runs(read(*tmp_path.iterdir()))
    write(page, tmp_path / "report")
    assert len({each.name for each in page.pictures}) == len(page.pictures) == 6
    assert len([*(tmp_path / "report").glob("accuracy*.png")]) == 3


def test_a_text_and_the_number_that_it_reads_as_are_two_settings(tmp_path):
    for value in ("1", 1, None, "null"):
        (sweep,) = asked(f"output_root={tmp_path}")
        leave_run(*sweep.jobs, [0.5], **{"algorithm.how": value})
    assert sorted(labels(compared(tmp_path))) == [f"fedavg how={text}" for text in ("'1'", "'null'", "1", "null")]


def test_curves_are_means_with_bands_over_every_axis(left):
    page = compared(left)
    chart = page.pictures[0].chart()
    lines = [trace for trace in chart["data"] if trace.get("showlegend", True)]
    assert [trace["name"] for trace in lines] == labels(page), "as short as the table's names"
    assert lines[0]["y"] == pytest.approx([10, 63]) and list(lines[0]["x"]) == [59, 60]
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in lines}) == 4
    band = next(trace for trace in chart["data"] if trace["name"] == lines[0]["name"] and "fill" in trace)
    assert band["y"] == pytest.approx([10, 63 + math.sqrt(2), 63 - math.sqrt(2), 10])
    over = {button["label"]: button["args"][0]["x"][-1] for button in chart["layout"]["updatemenus"][0]["buttons"]}
    assert {name: list(x) for name, x in over.items()} == {"round": [59, 60], "bytes": [59, 60], "seconds": [59, 60]}
    panels = page.pictures[0].draw().axes
    assert [axes.get_xlabel() for axes in panels] == [
        "round",
        "sent in both directions, MB",
        "seconds of the machine that made the run",
    ]


def test_a_curve_that_a_diverged_run_ends_is_marked(tmp_path):
    """Where the other seeds went on, the reader would else wonder what became of them."""
    (sweep,) = asked("seed=0,1,2", f"output_root={tmp_path}")
    for job in sweep.jobs[:2]:
        leave_run(job, [0.3, 0.5, 0.6])
    assert not crosses(compared(tmp_path).pictures[0])
    leave_run(sweep.jobs[2], [0.2, 0.1, 0.1], status="diverged")
    picture = compared(tmp_path).pictures[0]
    assert crosses(picture) == [(60, pytest.approx(100 * (0.6 + 0.6 + 0.1) / 3))] * 2
    assert "a run diverged" in picture.draw().axes[0].get_title(loc="right")
    (trace,) = (trace for trace in picture.chart()["data"] if "diverged" in trace.get("hovertemplate", ""))
    assert trace["hovertemplate"].startswith("1 of 3 runs diverged<")


def crosses(picture):
    """The points marked as a divergence, in the chart and in the first panel of the figure."""
    traces = [trace for trace in picture.chart()["data"] if "diverged" in trace.get("hovertemplate", "")]
    lines = [line for line in picture.draw().axes[0].lines if line.get_marker() == "X"]
    points = [(trace["x"], trace["y"]) for trace in traces] + [line.get_data() for line in lines]
    return [(x, y) for xs, ys in points for x, y in zip(xs, ys, strict=True)]


def test_a_legend_of_long_names_is_within_its_figure(tmp_path):
    words = ["local.momentum=0,0.5,0.9", "local.max_grad_norm=1,10", "local.weight_decay=0,0.0001"]
    (sweep,) = asked(*words, f"output_root={tmp_path}")
    for job in sweep.jobs:
        leave_run(job, [0.1, 0.5])
    figure = compared(tmp_path).pictures[0].draw()
    figure.draw_without_rendering()  # places the axes' labels
    box, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0
    assert box.y1 < min(axes.xaxis.label.get_window_extent().y0 for axes in figure.axes)


def test_two_keys_make_a_map(left):
    page = compared(left)
    (picture,) = [picture for picture in page.pictures if picture.name == "heat_map"]
    trace = picture.chart()["data"][0]
    assert (trace["y"], trace["x"]) == (["fedavg", "fedcat"], ["0.1", "0.2"])
    np.testing.assert_allclose(trace["z"], [[51, 55], [59, 63]])
    assert picture.draw().axes[0].get_xlabel() == "local.lr"
    assert "heat_map" not in [picture.name for picture in compare_runs(read(left)[:2]).pictures]


def test_a_page_shows_a_partition_and_needs_no_network(left):
    page = compared(left)
    web = html(page)
    assert "Curves and partitions" in web and "examples of each class that each client holds" in web
    counts = page.pictures[-1].chart()["data"][0]
    np.testing.assert_array_equal(counts["z"], [[7, 2], [0, 5]])
    assert len(web) < 6e6 and "<script src" not in web and "<link" not in web
    page.pictures = [picture for picture in page.pictures if picture.draw is not None]
    assert "Curves and partitions" not in html(page)


def test_files_of_a_report(left, tmp_path):
    write(compared(left), tmp_path / "to")
    names = {path.name for path in (tmp_path / "to").iterdir()}
    assert names == {f"runs.{kind}" for kind in ("md", "csv", "tex", "html")} | {
        f"{figure}.{kind}" for figure in ("accuracy", "heat_map") for kind in ("png", "pdf")
    }
    records = pd.read_csv(tmp_path / "to/runs.csv")
    assert {"setting", "algorithm", "local.lr", "seed", "final_accuracy", "rounds_to_0.55"} <= {*records}


def test_a_report_replaces_the_pictures_of_an_earlier_one_and_no_other_file(left, tmp_path):
    page, elsewhere = compared(left), tmp_path / "elsewhere.png"
    write(page, tmp_path / "to")
    assert (tmp_path / "to" / "heat_map.png").exists()
    others = [elsewhere, tmp_path / "to" / "mine.png"]
    for file in others:
        file.write_bytes(b"")
    with (tmp_path / "to" / "runs.md").open("a") as file:
        file.write("![added by hand](../elsewhere.png)\n![likewise](..%2Felsewhere.png)\n")
    page.pictures = [picture for picture in page.pictures if picture.name != "heat_map"]
    write(page, tmp_path / "to")
    kept = {file.name for file in (tmp_path / "to").iterdir() if file.suffix in (".png", ".pdf")}
    drawn = {picture.name for picture in page.pictures if picture.draw is not None}
    assert kept == {"mine.png", *(f"{name}.{kind}" for name in drawn for kind in ("png", "pdf"))}
    assert all(file.exists() for file in others)


SPOILT = [
    ("config.yaml", lambda text: text + b"\xff\xfe", "config.yaml cannot be read"),
    ("config.yaml", lambda text: text.replace(b"rounds: 60", b"rounds: many"), "config.yaml lacks rounds"),
    ("config.yaml", lambda text: b"[" * 10**5, "config.yaml cannot be read"),
    ("result.json", lambda text: text.replace(b'"rounds": 60', b'"rounds": "many"'), "no number for rounds"),
    ("config.yaml", lambda text: b"rounds: " + b"- " * 10**5, "config.yaml cannot be read"),
    ("config.yaml", lambda text: text + b"extra: &x [1]\nmore: [*x, *x]\n", "config.yaml cannot be read"),
    ("config.yaml", lambda text: text.replace(b"targets: []", b"targets: 3"), "has targets that are no fractions"),
    ("config.yaml", lambda text: text.replace(b"targets: []", b"targets: [a]"), "has targets that are no fractions "),
    ("result.json", lambda text: text.replace(b'"best_accuracy"', b'"best_accuracy": NaN, "x"'), "best_accuracy"),
]


def test_each_data_set_has_a_page_of_its_own(tmp_path):
    for words in (["algorithm=fedavg,fedcat"], ["dataset=mnist", "algorithm=fedprox", "local.lr=0.1,0.2"]):
        (sweep,) = asked(*words, f"output_root={tmp_path}")
        for job in sweep.jobs:
            leave_run(job, [0.5])
    pages = by_data_set(read(tmp_path))
    assert [(page.name, page.title) for page in pages] == [
        ("runs_digits", "digits: 2 runs, 2 settings"), ("runs_mnist", "mnist: 2 runs, 2 settings"),
    ]  # fmt: skip
    assert [sorted(labels(page)) for page in pages] == [["fedavg", "fedcat"], ["lr=0.1", "lr=0.2"]]
    (page,) = by_data_set([run for run in read(tmp_path) if run.data == "digits"])
    assert page.name == "runs"


def test_a_baseline_is_one_of_some_data_set_s_runs(tmp_path):
    for words in (["algorithm=fedavg,fedcat"], ["dataset=mnist", "algorithm=fedprox,fedavg"]):
        (sweep,) = asked(*words, f"output_root={tmp_path}")
        for job in sweep.jobs:
            leave_run(job, [0.5])
    pages = by_data_set(read(tmp_path), baseline="fedprox")
    assert [[sheet.title for sheet in page.sheets if "minus that of" in sheet.title] for page in pages] == [
        ["Final accuracy minus that of fedavg"], ["Final accuracy minus that of fedprox"],
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="baseline=moon"):
        by_data_set(read(tmp_path), baseline="moon")


@pytest.mark.parametrize(("name", "change", "said"), SPOILT, ids=[f"{name} {said}" for name, _, said in SPOILT])
def test_an_unreadable_folder_is_named_and_left_out(outputs, caplog, name, change, said):
    folder = next(path for path in outputs.iterdir() if "fedcat" in path.name)
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    assert "7 runs" in compared(outputs).title
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{folder} is left out: ") and said in line


def test_nothing_in_a_stranger_s_config_is_resolved(outputs, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    folder = next(path for path in outputs.iterdir() if "fedcat" in path.name)
    text = (folder / "config.yaml").read_text().replace("momentum: 0.9", "momentum: ${nosuch}")
    (folder / "config.yaml").write_text(text.replace("batch_size: 10", "batch_size: ${oc.env:SECRET}"))
    assert "${oc.env:SECRET}" in (folder / "config.yaml").read_text()
    write(compared(outputs), tmp_path / "to")
    assert not any(b"s3cret" in file.read_bytes() for file in (tmp_path / "to").iterdir())
    with pytest.raises(ConfigError, match=r"interpolations, \$\{...\}: not resolved"):
        saved(folder, [])


def test_a_stranger_s_name_is_text_in_markdown_and_latex(tmp_path):
    (sweep,) = asked("algorithm=fedavg,fedcat", f"output_root={tmp_path}")
    bad = "<b>[x](y)|`z`\\\\input{/etc/passwd}&#60;\\n\\\\input{x}"
    for job in sweep.jobs:
        file = leave_run(job, [0.5]) / "config.yaml"
        file.write_text(file.read_text().replace("name: fedcat", f'name: "{bad}"'))
    page = compared(tmp_path)
    page.notes.append(labels(page)[0])
    text, tex = markdown(page), latex(page)
    assert r"&lt;b&gt;\[x\](y)\|\`z\`\\input{/etc/passwd}&amp;#60; \\input{x}" in text and "<b>" not in text
    assert "\\input" not in "".join(line for line in tex.splitlines() if not line.startswith("%"))


def test_a_stranger_s_name_is_text_on_the_page(tmp_path):
    (sweep,) = asked("algorithm=fedavg,fedcat", f"output_root={tmp_path}")
    for job in sweep.jobs:
        file = leave_run(job, [0.5]) / "config.yaml"
        file.write_text(file.read_text().replace("name: fedcat", "name: <img src=x onerror=alert(1)>"))
    web = html(compared(tmp_path))
    assert "<img" not in web.replace("\\u003cimg", "") and "&lt;img src=x" in web


def test_a_stranger_s_name_is_text_in_a_terminal(tmp_path):
    (sweep,) = asked("algorithm=fedavg,fedcat", f"output_root={tmp_path}")
    for job in sweep.jobs:
        file = leave_run(job, [0.5]) / "config.yaml"
        file.write_text(file.read_text().replace("name: fedavg", "name: '[/x]'"))
    out = io.StringIO()
    terminal(compared(tmp_path, baseline="[/x]"), Console(file=out, width=80))
    assert "Final accuracy minus that of [/x]" in out.getvalue()
