"""wandb dashboards of a table: made, or told."""

from dataclasses import replace

import pytest
from composing import asked

from fedexp.cli import carry_out
from fedexp.report.dashboard import build, plan


def report(*words):
    """Of one of the table's cells: to compose the others makes no other dashboard."""
    return carry_out("report", [*map(str, words), 'table.select="cifar10 dir0.1 fedcat$"'])


def test_a_dashboard_is_where_the_runs_are(capsys, monkeypatch):
    for name, value in {"PROJECT": "theirs", "ENTITY": "them", "RUN_GROUP": "study", "MODE": "offline"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    assert report("table=fedcat_3", "--dashboard") == 0
    assert "in project them/theirs, over the runs of group study" in capsys.readouterr().out
    assert report("table=fedcat_3", "tracking.project=mine", "tracking.group=first", "--dashboard") == 0
    assert "in project them/mine, over the runs of group first" in capsys.readouterr().out


@pytest.mark.parametrize(("mode", "why"), [("offline", "wandb is offline"), ("auto", "no wandb credentials")])
def test_a_dashboard_without_credentials_is_told(tmp_path, capsys, monkeypatch, mode, why):
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert report("table=fedcat_3", f"tracking.mode={mode}", "--dashboard") == 0
    said = capsys.readouterr().out
    assert f"fedexp: {why}" in said and "would make" in said
    assert 'workspace "fedcat_3" in project fedexp, over the runs of group fedcat_3' in said
    assert "Test accuracy over bytes sent: lines of test_accuracy over bytes_total" in said


def test_a_dashboard_is_what_the_plan_says():
    pytest.importorskip("wandb_workspaces")
    (sweep,) = asked("+table=fedcat_3", "+scale=quick")
    wanted = replace(plan(sweep), entity="someone")
    made = build(wanted)
    assert [section.name for section in made.sections] == list(wanted.sections)
    assert [len(section.panels) for section in made.sections] == [len(panels) for panels in wanted.sections.values()]
    text = made._to_model().model_dump_json()
    assert "fedcat_3" in text and "quick" in text and "bytes_total" in text
