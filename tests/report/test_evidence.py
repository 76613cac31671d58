"""outputs/published: the runs behind the numbers of README.md, and the pages made of them."""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest
from rich.console import Console

from fedexp.report.any_runs import by_data_set, compare_runs
from fedexp.report.folders import read
from fedexp.report.paper_pages import paper_pages, read_remarks
from fedexp.report.writers import markdown, terminal

ROOT = Path(__file__).parent.parent.parent
PUBLISHED = ROOT / "outputs" / "published"
RUNS = sorted(path.parent for path in PUBLISHED.glob("*/config.yaml"))


def test_the_pages_are_those_of_the_runs():
    runs = read(PUBLISHED)
    made = {
        f"{page.name}.md": markdown(page)
        for page in (*by_data_set(runs), *paper_pages(runs, remarks=read_remarks(PUBLISHED)))
    }
    kept = {path.name: path.read_text() for path in (PUBLISHED / "reports").rglob("*.md")}
    assert {"runs_digits.md", "runs_fmnist.md", "runs_mnist.md", "cadis.md", "fedconcat.md"} <= kept.keys()
    assert kept == made


def test_every_picture_is_on_its_page():
    for page in (PUBLISHED / "reports").rglob("*.md"):
        shown = {unquote(name) for name in re.findall(r"\]\(([^)]+\.png)\)", page.read_text())}
        assert shown == {path.name for path in page.parent.glob("*.png")}


DIVERGED = {  # README.md there says so of all three
    "fmnist-dir0.1-simple_cnn-fedavgm-seed2-c595cd8d21", "fmnist-dir0.1-simple_cnn-fedbuff-seed2-3148430e85",
    "mnist-dir0.1-mcmahan_cnn-scaffold-seed0-3cd6019689",
}  # fmt: skip


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_a_run_is_whole_names_its_commit_and_no_folder_of_a_machine(folder):
    assert not re.search(r"(^|\s)/", (folder / "config.yaml").read_text())
    if (folder / "information.csv").exists():  # of fedexp study
        assert pd.read_csv(folder / "information.csv")["commit"].str.fullmatch("[0-9a-f]{12}").all()
        return
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == ("diverged" if folder.name in DIVERGED else "finished")
    assert re.fullmatch("[0-9a-f]{12}", result["commit"])
    assert folder.name.endswith(result["fingerprint"])
    assert len((folder / "metrics.csv").read_text().splitlines()) > 1


def test_they_are_all_listed_and_small():
    listed = re.findall(r"^\| ([\w.-]+)-\.\.\. \((\d+)\)", (PUBLISHED / "README.md").read_text(), re.MULTILINE)
    counted = {start: sum(run.name.startswith(f"{start}-") for run in RUNS) for start, _ in listed}
    assert counted == {start: int(count) for start, count in listed}
    assert sum(counted.values()) == len(RUNS) >= 113
    assert sum(path.stat().st_size for run in RUNS for path in run.iterdir()) < 10e6


def test_the_readme_s_speeds_are_those_of_the_benchmark_on_each_machine():
    machines = (PUBLISHED / "speed.txt").read_text().split("# python -m fedexp bench ")[1:]
    assert len(machines) == 2
    for text in machines:
        assert re.match(r".*\n# commit [0-9a-f]{12}, two cores of an (Intel|AMD) ", text)
        rows = [line.split() for line in text.splitlines() if re.match(r" [A-E] +[\d.]+", line)]
        plain, floor = ([float(row[column]) for row in rows] for column in (4, 5))
        assert len(rows) == 5
        said = f"{min(plain):.2f} to {max(plain):.2f} times the plain loop's speed and "
        said += f"{min(floor):.2f} to {max(floor):.2f} times the floor's"
        assert said in " ".join((ROOT / "README.md").read_text().split())


def test_the_readme_s_start_and_round_are_those_of_the_most_clients():
    text = (PUBLISHED / "scale.txt").read_text()
    rows = [line.split() for line in text.splitlines() if " 100,000 " in line]
    assert len(rows) == 5 and re.search(r"^# commit [0-9a-f]{12}, ", text, re.MULTILINE)
    start, seconds = (max(float(row[column]) for row in rows) for column in (2, 3))
    said = f"starts within {start} s, and a round of ten takes at most {seconds:.2f} s"
    assert said in " ".join((ROOT / "README.md").read_text().split())


def test_the_readme_s_comparison_is_that_of_the_runs():
    page = compare_runs(read(*(run for run in RUNS if run.name.startswith("digits-"))))
    console = Console(width=80, highlight=False)
    with console.capture() as captured:
        terminal(page, console)
    said = [" ".join(line.split()) for line in captured.get().splitlines()]
    readme = (ROOT / "README.md").read_text()
    rows = [" ".join(line.split()) for line in re.findall(r"^ {5}((?:fed|scaf)\w+ .*±.*)$", readme, re.MULTILINE)]
    assert len(rows) == 4 and all(row in said for row in rows)
    difference = r"fedcat minus fedavg: (\S+) points, 95% interval\s+(\S+) to (\S+)\)"
    points, low, high = re.search(difference, readme).groups()
    assert f"fedcat {points} {low} to {high} no 3" in said


def test_the_readme_s_counts_are_those_of_the_papers_pages():
    """A paper's first table, of Zhao et al. the first two, has all accuracies measured in full; others repeat them."""
    readme = " ".join((ROOT / "README.md").read_text().split())
    full = near = rounds = losses = different = agree = 0
    for paper in ("fedconcat", "fedcat", "cadis", "zhao2018"):
        page = (PUBLISHED / "reports" / paper / f"{paper}.md").read_text()
        found = re.findall(r"after all rounds of the protocol: (\d+); of these [^:]*: (\d+)\.", page)
        tables = [(int(measured), int(agreeing)) for measured, agreeing in found]
        accuracies, agreeing = (sum(column) for column in zip(*tables[: 2 if paper == "zhao2018" else 1], strict=True))
        cells = sum(measured for measured, _ in tables)
        assert f" {accuracies} accuracies, in {cells} cells | {agreeing} of {accuracies}" in readme
        different, agree = different + accuracies, agree + agreeing
        full, near = full + cells, near + sum(each for _, each in tables)
        rounds += sum(map(int, re.findall(r"rounds to a target accuracy\. (\d+) of \d+ cells measured", page)))
        losses += sum(map(int, re.findall(r"encoders\. (\d+) of \d+ cells measured", page)))
    said = (
        f"{full + rounds + losses} have been measured in full, with one to three seeds: {full} hold accuracies, {near} "
    )
    said += "of them within 1.5 points of the published value or within its published spread, "
    said += f"{rounds} numbers of rounds and {losses} losses. "
    assert (
        f"{said}Tables repeat some of them: these are {different} different accuracies, of which {agree} agree."
        in readme
    )
