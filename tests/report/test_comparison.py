"""A table beside its published values: what is matched, what is kept apart, what is said."""

import math

import pytest
from composing import asked
from recorded import leave_run

from fedexp.report.comparison import compare
from fedexp.report.folders import read
from fedexp.report.page import NOTHING
from fedexp.report.writers import html, latex, markdown

# The algorithms of FedCat's table 3 and their printed accuracies on cifar10 dir0.1.
PRINTED = {"fedavg": 51.01, "fedcat_gc": 51.02, "fedcat_dc": 55.06, "fedcat": 56.16}
WORDS = ["+table=fedcat_3"]
ROW = 'table.select="^cifar10 dir0.1"'


@pytest.fixture
def sweep(tmp_path):
    (found,) = asked(*WORDS, ROW, f"output_root={tmp_path}")
    return found


def jobs_of(sweep, algorithm):
    return [job for job in sweep.jobs if job.cell.column == algorithm]


def page_of(sweep, tmp_path):
    return compare(sweep, read(tmp_path))


def record(page, column):
    return page.records.set_index("column").loc[column]


def entry(page, column):
    sheet = page.sheets[0]
    return sheet.rows[0][sheet.header.index(column)]


def test_mean_spread_difference_and_missing_seeds(sweep, tmp_path):
    for job, final in zip(jobs_of(sweep, "fedcat"), (0.50, 0.56)):  # of three seeds
        leave_run(job, [0.2, final])
    page = page_of(sweep, tmp_path)
    line = record(page, "fedcat")
    assert line.measured == pytest.approx(53.0)
    assert line["std"] == pytest.approx(math.sqrt(18))
    assert line.difference == pytest.approx(53.0 - 56.16)
    assert (line.seeds, line.seeds_asked) == (2, 3)
    assert any("2 of 3 seeds" in note for note in page.notes)
    assert entry(page, "fedcat").main.startswith("53.00 ± 4.24")
    assert entry(page, "fedavg").missing
    assert page.sheets[1].rows[0][3].main == "1000 / 1000"


@pytest.mark.parametrize(("words", "seeds"), [(["seed=0"], 1), (["seed=0,1,2,3"], 4), (["local.lr=0.01,0.05"], 3)])
def test_as_many_seeds_are_asked_for_as_the_command_line_says(tmp_path, words, seeds):
    (sweep,) = asked(*WORDS, ROW, *words, f"output_root={tmp_path}")
    for job in jobs_of(sweep, "fedcat"):
        leave_run(job, [0.2, 0.5])
    page = page_of(sweep, tmp_path)
    line = record(page, "fedcat")
    assert (line.seeds, line.seeds_asked) == (seeds, seeds) and not line.lacking
    assert f"seeds asked for: {seeds}, run: {seeds}" in " ".join(page.lead)


def test_marks_winners_and_ranks(sweep, tmp_path):
    for algorithm, final in {"fedavg": 0.4, "fedcat_gc": 0.3, "fedcat_dc": 0.6, "fedcat": 0.5}.items():
        leave_run(jobs_of(sweep, algorithm)[0], [final])
    page = page_of(sweep, tmp_path)
    assert {name: entry(page, name).mark for name in PRINTED} == {
        "fedavg": "", "fedcat_gc": "", "fedcat_dc": "best", "fedcat": "second",
    }  # fmt: skip
    name, here, there, spearman, cells = (each.main for each in page.sheets[2].rows[0])
    assert (name, here, there, cells) == ("cifar10 dir0.1", "fedcat_dc", "fedcat", "4 of 4")
    # Ranks 2 1 4 3 against 1 2 3 4: sum of squared differences 4, so 1 - 6 * 4 / (4 * 15).
    assert float(spearman) == pytest.approx(0.6)
    said = "The best of those compared is the paper's in 0 of 1 line that can be compared; mean rank correlation +0.60."
    assert said in page.lead[0]


def test_another_protocol_is_never_mixed_in(sweep, tmp_path):
    first, second, third = jobs_of(sweep, "fedcat")
    leave_run(first, [0.5])
    leave_run(second, [0.9], **{"local.lr": 0.5})
    leave_run(third, [0.9], **{"local.lr": 0.5})
    page = page_of(sweep, tmp_path)
    assert record(page, "fedcat").measured == pytest.approx(50.0)
    assert any("local.lr=0.5 (protocol: 0.01)" in note and "left out" in note for note in page.notes)


def test_seeds_of_data_sharing_are_averaged(tmp_path):
    (sweep,) = asked(
        "+table=zhao2018_fig7", "table.seeds=[0,1,2]", 'table.select="^warm-up beta=10"', f"output_root={tmp_path}"
    )
    for job, final in zip(sweep.jobs, (0.7, 0.8, 0.9)):
        leave_run(job, [final])
    page = page_of(sweep, tmp_path)
    (line,) = page.records.to_dict("records")
    assert (line["measured"], line["std"]) == pytest.approx((80, 10))
    assert (line["seeds"], line["deviation"], page.notes) == (3, "", [])


def test_a_table_may_repeat_distributions_at_one_seed(tmp_path):
    (sweep,) = asked("+table=zhao2018_2", 'table.select="^EMD 0 mnist"', f"output_root={tmp_path}")
    assert [(job.config.seed, job.config.partition.distribution) for job in sweep.jobs] == [(0, n) for n in range(5)]
    for job, final in zip(sweep.jobs, (0.5, 0.6, 0.7, 0.8)):
        leave_run(job, [final])
    page = page_of(sweep, tmp_path)
    (line,) = page.records.to_dict("records")
    assert (line["measured"], line["deviation"]) == (pytest.approx(65), "")
    assert page.notes == ["EMD 0 mnist: 4 of 5 distributions."]
    assert "distributions asked for: 5, run: 4" in page.lead[0] and page.sheets[1].header[2] == "distributions / asked"


def test_what_was_measured_besides_makes_no_other_protocol_and_no_other_run(sweep, tmp_path):
    watched = {"reference": "centralized", "targets": [0.9], "evaluate.clients": "all"}
    first, second, third = jobs_of(sweep, "fedcat")
    leave_run(first, [0.5])
    leave_run(first, [0.5], **watched)
    leave_run(second, [0.6], **watched)
    leave_run(third, [0.9], **watched)
    page = page_of(sweep, tmp_path)
    line = record(page, "fedcat")
    assert (line.measured, line.seeds, line.deviation) == (pytest.approx(200 / 3), 3, "")
    assert not any("left out" in note for note in page.notes)


def test_what_a_table_is_about_is_no_deviation(tmp_path):
    """FedConcat's table 9 has 231 rounds of encoders: runs of its table 1, which has 31, are none of it."""
    words = ['table.select="^fmnist dir0.1 fedconcat$"', f"output_root={tmp_path}"]
    (first,) = asked("+table=fedconcat_1", *words, "rounds=404")
    (ninth,) = asked("+table=fedconcat_9", *words)
    leave_run(first.jobs[0], [0.8])
    assert not entry(page_of(first, tmp_path), "fedconcat").missing
    assert entry(page_of(ninth, tmp_path), "fedconcat").missing
    leave_run(ninth.jobs[0], [0.9])
    assert record(page_of(ninth, tmp_path), "fedconcat").measured == pytest.approx(90)


def test_where_there_is_only_another_protocol_it_is_said(sweep, tmp_path):
    leave_run(jobs_of(sweep, "fedcat")[0], [0.9], **{"local.lr": 0.5})
    leave_run(jobs_of(sweep, "fedavg")[0], [0.5])
    page = page_of(sweep, tmp_path)
    assert entry(page, "fedcat").main == "90.00*"
    assert any(note == "* cifar10 dir0.1 fedcat: local.lr=0.5 (protocol: 0.01)." for note in page.notes)
    assert page.sheets[2].rows[0][1].main == "not comparable"
    assert entry(page, "fedcat").mark == ""


@pytest.mark.parametrize("other", [0.1, 0.9])
def test_of_equally_near_protocols_the_one_of_other_cells_is_shown(sweep, tmp_path, other):
    for lr, accuracy in ((other, 0.9), (0.5, 0.6)):
        leave_run(jobs_of(sweep, "fedcat")[0], [accuracy], **{"local.lr": lr})
    leave_run(jobs_of(sweep, "fedavg")[0], [0.5], **{"local.lr": 0.5})
    page = page_of(sweep, tmp_path)
    assert entry(page, "fedcat").main == "60.00*"
    assert page.sheets[2].rows[0][1].main == "fedcat"
    assert any(f"local.lr={other}" in note and "left out" in note for note in page.notes)


def test_cells_of_a_line_are_shown_under_a_protocol_that_they_share(sweep, tmp_path):
    """FedCat also ran nearer to the paper's protocol, but alone: it is shown as the other cell ran."""
    nearer, further = {"local.lr": 0.5}, {"local.lr": 0.5, "local.momentum": 0.1}
    leave_run(jobs_of(sweep, "fedcat")[0], [0.9], **nearer)
    leave_run(jobs_of(sweep, "fedcat")[0], [0.6], **further)
    leave_run(jobs_of(sweep, "fedavg")[0], [0.5], **further)
    page = page_of(sweep, tmp_path)
    assert (entry(page, "fedcat").main, entry(page, "fedavg").main) == ("60.00*", "50.00*")
    assert page.sheets[2].rows[0][1].main == "fedcat"
    assert any("fedcat: runs of other protocols exist" in note and "local.lr=0.5" in note for note in page.notes)


def test_the_most_cells_that_are_alike_are_compared(sweep, tmp_path):
    """FedCat ran in bfloat16 alone: the best, the marks and the pairs are those of the other cells, which did not."""
    leave_run(jobs_of(sweep, "fedcat")[0], [0.9], **{"hardware.precision": "bfloat16"})
    for name, accuracy in (("fedavg", 0.5), ("fedcat_gc", 0.6), ("fedcat_dc", 0.7)):
        leave_run(jobs_of(sweep, name)[0], [accuracy])
    page = page_of(sweep, tmp_path)
    names = ("fedavg", "fedcat_gc", "fedcat_dc", "fedcat")
    assert [entry(page, name).mark for name in names] == ["", "second", "best", ""]
    line = [each.main for each in page.sheets[2].rows[0]]
    assert (line[1], line[4]) == ("fedcat_dc", "3 of 4")
    (paired,) = [sheet for sheet in page.sheets if "minus that of fedavg" in sheet.title]
    assert [row[1].main for row in paired.rows] == ["+10.00", "+20.00"]


def test_a_run_that_was_asked_for_is_shown_although_it_cannot_be_compared(sweep, tmp_path):
    other = {"local.lr": 0.5}
    leave_run(jobs_of(sweep, "fedcat")[0], [0.9])
    leave_run(jobs_of(sweep, "fedcat")[1], [0.6], **other)
    leave_run(jobs_of(sweep, "fedavg")[0], [0.5], **other)
    page = page_of(sweep, tmp_path)
    assert (entry(page, "fedcat").main, entry(page, "fedavg").main) == ("90.00", "50.00*")
    assert page.sheets[2].rows[0][1].main == "not comparable"


def test_what_the_command_line_changes_is_said_too(tmp_path):
    (sweep,) = asked(*WORDS, ROW, "local.lr=0.5", "rounds=7", f"output_root={tmp_path}")
    leave_run(jobs_of(sweep, "fedcat")[0], [0.1] * 7)
    page = page_of(sweep, tmp_path)
    assert "local.lr=0.5 (protocol: 0.01)" in record(page, "fedcat").deviation
    assert page.sheets[1].rows[0][3].main == "7 / 1000"
    assert entry(page, "fedcat").main == "10.00*‡" and r"10.00*$\ddagger$" in latex(page)
    assert "‡ cifar10 dir0.1 fedcat: after 7 rounds (protocol: 1000)." in page.notes


def test_a_run_is_read_after_as_many_rounds_as_are_asked_for(tmp_path):
    """One of 9 rounds: after 7 of them, by a table of 7; a table of 12, or of the protocol's 1000, finds it short."""
    (nine,) = asked(*WORDS, ROW, "rounds=9", f"output_root={tmp_path}")
    first, second, third = jobs_of(nine, "fedcat")
    leave_run(first, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    leave_run(second, [0.1] * 9, status="diverged")
    leave_run(third, [0.1, 0.3])  # of rounds 8 and 9
    for rounds, accuracy, lacking in (
        (7, (70 + 10) / 2, "2 of 3 seeds; seed 2 was not evaluated after round 7, of its 9"),
        (9, (90 + 10 + 30) / 3, ""),
        (12, 10, "1 of 3 seeds; seed 0 has 9 of 12 rounds; seed 2 has 9 of 12 rounds"),
        (1000, 10, "1 of 3 seeds; seed 0 has 9 of 1000 rounds; seed 2 has 9 of 1000 rounds"),
    ):
        (sweep,) = asked(*WORDS, ROW, f"rounds={rounds}", f"output_root={tmp_path}")
        page = page_of(sweep, tmp_path)
        line = record(page, "fedcat")
        assert (line.measured, line.lacking) == (pytest.approx(accuracy), lacking), rounds
        assert line.rounds == min(rounds, 9)
        assert page.sheets[1].rows[0][3].main == f"{min(rounds, 9)} / 1000"


def test_a_best_accuracy_is_of_the_rounds_that_are_asked_for(tmp_path):
    words = [*WORDS, ROW, "table.measure=best", f"output_root={tmp_path}"]
    (four,) = asked(*words, "rounds=4")
    leave_run(jobs_of(four, "fedcat")[0], [0.2, 0.5, 0.3, 0.9])
    (three,) = asked(*words, "rounds=3")
    assert record(page_of(three, tmp_path), "fedcat").measured == pytest.approx(50)
    assert record(page_of(four, tmp_path), "fedcat").measured == pytest.approx(90)


def test_a_key_at_its_default_is_said_with_its_value(sweep, tmp_path):
    """Of the run or of the protocol; a key that one of them does not have at all is said so."""
    leave_run(jobs_of(sweep, "fedcat")[0], [0.9], **{"local.momentum": 0.5, "server_optimizer.lr": 0.5})
    hidden = {"model._target_": "fedexp.models.mcmahan.mcmahan_cnn", "model.name": "mcmahan_cnn", "model.hidden": 64}
    leave_run(jobs_of(sweep, "fedavg")[0], [0.5], **hidden)
    page = page_of(sweep, tmp_path)
    assert record(page, "fedcat").deviation == (
        "server_optimizer.lr=0.5 (protocol: 1.0); local.momentum=0.5 (protocol: 0.9)"
    )
    assert record(page, "fedavg").deviation == (
        "model=mcmahan_cnn (protocol: simple_cnn); model.hidden=64 (not in the protocol)"
    )
    assert "None" not in markdown(page)


def test_a_copy_of_the_data_is_named(sweep, tmp_path):
    copy = {"dataset._target_": "fedexp.data.image_folder.image_folder", "dataset.source": "JPEG copy"}
    leave_run(jobs_of(sweep, "fedcat")[0], [0.5], **copy)
    page = page_of(sweep, tmp_path)
    assert record(page, "fedcat").data == "cifar10 (JPEG copy)"
    assert page.sheets[1].rows[0][4].main == "cifar10 (JPEG copy)"


def test_incomplete_and_diverged_runs(sweep, tmp_path):
    path = leave_run(jobs_of(sweep, "fedavg")[0], [0.3], status="failed")
    (path / "error.txt").write_text("ValueError: no such thing\n\nTraceback\nValueError: no such\nthing\n")
    leave_run(jobs_of(sweep, "fedcat")[0], [0.1], status="diverged")
    page = page_of(sweep, tmp_path)
    assert entry(page, "fedavg").missing
    assert any("seed 0 failed: ValueError: no such thing" in note for note in page.notes)
    assert entry(page, "fedcat").main == "10.00†"
    assert any("1 of 1 runs diverged" in note for note in page.notes)


def test_a_scaled_run_is_never_taken_for_a_real_one(sweep, tmp_path):
    (quick,) = asked(*WORDS, ROW, "+scale=quick", f"output_root={tmp_path}")
    leave_run(jobs_of(quick, "fedcat")[0], [0.5])
    leave_run(jobs_of(sweep, "fedavg")[0], [0.5])
    assert math.isnan(record(page_of(sweep, tmp_path), "fedcat").measured)
    page = page_of(quick, tmp_path)
    assert math.isnan(record(page, "fedavg").measured)
    assert record(page, "fedcat").data == "cifar10 (digits in its place)"
    assert page.name == "fedcat_3_quick"
    assert "Scale: quick" in page.lead[0]


def test_a_reduction_needs_its_reference(tmp_path):
    (sweep,) = asked(*WORDS, ROW, f"output_root={tmp_path}", "table.measure={reduction: null}",
                     "+table.reference={algorithm: centralized}")  # fmt: skip
    (cell,), (reference,) = (
        [job for job in jobs_of(sweep, "fedcat") if job.reference is which][:1] for which in (False, True)
    )
    assert reference.config.algorithm.name == "centralized"
    leave_run(cell, [0.3, 0.5, 0.45])
    page = page_of(sweep, tmp_path)
    assert math.isnan(record(page, "fedcat").measured)
    leave_run(reference, [0.6, 0.7, 0.8])
    assert record(page_of(sweep, tmp_path), "fedcat").measured == pytest.approx(35.0)


def test_every_format_tells_the_same(sweep, tmp_path):
    for algorithm in PRINTED:
        leave_run(jobs_of(sweep, algorithm)[0], [0.1, 0.5 + 0.01 * len(algorithm)])
    page = page_of(sweep, tmp_path)
    text, tex, web = markdown(page), latex(page), html(page)
    assert "| cifar10 dir0.1 | 56.00 (51.01, +4.99) |" in text
    assert "**59.00** (51.02, +7.98)" in text
    assert "\\textbf{59.00} {\\scriptsize (51.02, +7.98)}" in tex
    assert "fedcat\\_gc" in tex and tex.count("\\toprule") == tex.count("\\bottomrule") == len(page.sheets)
    assert '<span class="main best">59.00</span>' in web
    assert web.count('class="plotly-graph-div"') == 1
    assert "<script src" not in web and "<link" not in web
    published = [trace for trace in page.pictures[0].chart()["data"] if trace.get("mode") == "markers"]
    assert {trace["name"]: trace["y"] for trace in published} == {name: [value] for name, value in PRINTED.items()}


def test_a_table_s_runs_are_compared_as_any_runs_are(sweep, tmp_path):
    for seed, job in enumerate(jobs_of(sweep, "fedcat")[:2]):
        leave_run(job, [0.2, 0.5 + 0.02 * seed])
    for job in jobs_of(sweep, "fedavg")[:2]:
        leave_run(job, [0.1, 0.4])
    page = compare(sweep, read(tmp_path), targets=[0.5])
    sheets = {sheet.title: [[entry.main for entry in row] for row in sheet.rows] for sheet in page.sheets[3:]}
    assert [*sheets] == ["Test accuracy", "Until 50 % is reached", "Final accuracy minus that of fedavg"]
    assert sheets["Test accuracy"][1][:3] == ["cifar10 dir0.1 fedcat", "51.00 ± 1.41", "51.00 ± 1.41"]
    assert sheets["Until 50 % is reached"][1][1] == "1,000.0 ± 0.0"
    assert sheets["Final accuracy minus that of fedavg"][0][:2] == ["cifar10 dir0.1 fedcat", "+11.00"]


@pytest.mark.parametrize(("lr", "points", "mark"), [(0.5, NOTHING, ""), (0.01, "+20.00", "best")])
def test_a_run_of_another_protocol_is_no_baseline_and_no_rival(sweep, tmp_path, lr, points, mark):
    """lr: FedCat's; FedAvg's is the protocol's 0.01."""
    leave_run(jobs_of(sweep, "fedcat")[0], [0.7], **{"local.lr": lr})
    leave_run(jobs_of(sweep, "fedavg")[0], [0.5])
    sheets = {sheet.title: sheet.rows for sheet in page_of(sweep, tmp_path).sheets[3:]}
    assert sheets["Final accuracy minus that of fedavg"][0][1].main == points
    (line,) = [row for row in sheets["Test accuracy"] if row[0].main == "cifar10 dir0.1 fedcat"]
    assert line[1].mark == mark


def test_a_tie_has_no_winner(sweep, tmp_path):
    for algorithm in PRINTED:
        leave_run(jobs_of(sweep, algorithm)[0], [0.1])
    page = page_of(sweep, tmp_path)
    assert page.sheets[2].rows[0][1].main == "a tie of 4"
    assert {entry(page, name).mark for name in PRINTED} == {""}


def test_a_target_that_a_short_run_did_not_reach_ranks_nowhere(tmp_path):
    """CADIS's table 2: rounds to 80 %, of runs of ten rounds, in which two algorithms reached it and two did not."""
    (sweep,) = asked("+table=cadis_2", 'table.select="^mnist to 80%"', "table.seeds=[0]", f"output_root={tmp_path}")
    found = {job.cell.column: job for job in sweep.jobs}
    for name, accuracies in {"fedfa": [0.8], "cadis": [0.8, 0.9], "fedavg": [0.1], "fedprox": [0.2]}.items():
        leave_run(found[name], accuracies, rounds=10)  # those of the last rounds
    page = compare(sweep, read(tmp_path), shorter=True)
    assert {name: entry(page, name).main for name in ("fedavg", "fedprox")} == {
        "fedavg": "not reached‡", "fedprox": "not reached‡",
    }  # fmt: skip
    assert [entry(page, name).mark for name in ("cadis", "fedfa", "fedavg", "fedprox")] == ["best", "", "", ""]
    _, best, _, spearman, cells = (each.main for each in page.sheets[2].rows[0])
    assert (best, spearman, cells) == ("cadis", NOTHING, "4 of 5")


def test_runs_of_all_rounds_are_shown_before_shorter_ones_nearer_to_the_protocol(sweep, tmp_path):
    """FedCat ran to the end with another learning rate, and for twenty rounds as in the protocol."""
    leave_run(jobs_of(sweep, "fedcat")[0], [0.9], **{"local.lr": 0.5})
    leave_run(jobs_of(sweep, "fedcat")[0], [0.1], rounds=20)
    page = compare(sweep, read(tmp_path), shorter=True)
    assert entry(page, "fedcat").main == "90.00*"
    assert record(page, "fedcat").rounds == 1000
    assert any("left out: 1 run, rounds 20, otherwise as in the protocol" in note for note in page.notes)


def test_a_diverged_run_counts_among_those_of_all_rounds(sweep, tmp_path):
    """It ended after twenty rounds and would not go on; without it, the mean would be that of the survivors."""
    first, second, _ = jobs_of(sweep, "fedcat")
    leave_run(first, [0.5])
    leave_run(second, [0.1], status="diverged", rounds=20)
    for shorter in (False, True):
        page = compare(sweep, read(tmp_path), shorter=shorter)
        assert entry(page, "fedcat").main == "30.00 ± 28.28†"
        assert (record(page, "fedcat").seeds, record(page, "fedcat").deviation) == (2, "")
        assert "† cifar10 dir0.1 fedcat: 1 of 2 runs diverged." in page.notes


def test_a_run_whose_metrics_are_gone_measures_nothing(sweep, tmp_path):
    path = leave_run(jobs_of(sweep, "fedcat")[0], [0.5])
    (path / "metrics.csv").unlink()
    page = page_of(sweep, tmp_path)
    assert entry(page, "fedcat").missing
    assert "cifar10 dir0.1 fedcat: seed 0 its metrics.csv cannot be read." in page.notes
    assert "0 of 4 cells measured" in page.lead[0]


@pytest.mark.parametrize("row", ["2,0.5,1,1,1,1,1,1,1,1,1,1", "two,0.5", "2,half"])
def test_a_run_whose_metrics_are_damaged_after_their_beginning_measures_nothing(sweep, tmp_path, row):
    job = jobs_of(sweep, "fedcat")[0]
    path = leave_run(job, [0.5])
    (path / "metrics.csv").write_text(f"round,test_accuracy\n1,0.5\n{row}\n{job.plain['rounds']},0.5\n")
    page = page_of(sweep, tmp_path)
    assert entry(page, "fedcat").missing
    assert "cifar10 dir0.1 fedcat: metrics.csv cannot be read or lacks this number." in page.notes
