"""A wandb workspace for a table's runs, made through wandb's public workspace API.

Without credentials (or without the package `wandb-workspaces`) the dashboard is only described.
"""

from dataclasses import dataclass
from typing import Any

from fedexp.record.wandb import WandbTracker, has_credentials
from fedexp.sweep.jobs import Sweep

_GROUP_BY = ("dataset", "partition", "algorithm")


@dataclass(frozen=True)
class Panel:
    """kind: lines (over `x`), bars or scatter (of summary values)."""

    kind: str
    title: str
    metric: str
    x: str = "round"

    def said(self) -> str:
        return f"{self.title}: {self.kind} of {self.metric}" + ("" if self.kind == "bars" else f" over {self.x}")


@dataclass(frozen=True)
class Plan:
    """The dashboard: sections of panels over the runs of one wandb group. mode: wandb's."""

    project: str
    entity: str | None
    name: str
    group: str
    tag: str | None
    mode: str
    sections: dict[str, tuple[Panel, ...]]

    def said(self) -> str:
        place = f"{self.entity}/{self.project}" if self.entity else self.project
        runs = f"the runs of group {self.group}" + (f" with tag {self.tag}" if self.tag else "")
        lines = [f'workspace "{self.name}" in project {place}, over {runs}, grouped by {", ".join(_GROUP_BY)}']
        for section, panels in self.sections.items():
            lines.append(f"  {section}")
            lines += [f"    {panel.said()}" for panel in panels]
        return "\n".join(lines)


def plan(sweep: Sweep) -> Plan:
    """The dashboard of a table: curves, final values, cost, skew."""
    tracking: Any = next((job.plain["tracking"] for job in sweep.jobs if job.plain is not None), {})
    name = sweep.table.name if sweep.scale is None else f"{sweep.table.name} ({sweep.scale})"
    sections = {
        "Accuracy": (
            Panel("lines", "Test accuracy", "test_accuracy"),
            Panel("lines", "Test accuracy over bytes sent", "test_accuracy", "bytes_total"),
            Panel("bars", "Final accuracy", "final_accuracy"),
            Panel("bars", "Best accuracy", "best_accuracy"),
        ),
        "Training": (Panel("lines", "Test loss", "test_loss"), Panel("lines", "Local loss", "local_loss")),
        "Skew": (
            Panel("lines", "Weight divergence", "divergence_mean"),
            Panel("scatter", "Accuracy against EMD", "final_accuracy", "emd"),
        ),
        "Cost": (
            Panel("bars", "Bytes up", "bytes_up"),
            Panel("bars", "Bytes down", "bytes_down"),
            Panel("bars", "Seconds", "seconds"),
        ),
    }
    own = WandbTracker(**{key: tracking.get(key) for key in ("project", "entity", "group", "mode")})
    return Plan(own.project, own.entity, name, own.group or sweep.table.name, sweep.scale, own.mode, sections)


def dashboard(sweep: Sweep) -> None:
    """Make the workspace and print its address; offline or without credentials, print its description."""
    wanted = plan(sweep)
    if wanted.mode in ("offline", "disabled"):
        why = f"wandb is {wanted.mode}"
    elif not has_credentials():
        why = "no wandb credentials (wandb login)"
    else:
        try:
            workspace = build(wanted)
        except ImportError:
            why = "needs the package wandb-workspaces (pip install wandb-workspaces)"
        else:
            workspace.save()
            print(f"fedexp: made {workspace.url}")
            return
    print(f"fedexp: {why}; would make:\n{wanted.said()}")


def build(wanted: Plan) -> Any:
    """The workspace, not yet saved."""
    import wandb
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as workspaces

    def drawn(panel: Panel) -> Any:
        if panel.kind == "lines":
            return reports.LinePlot(title=panel.title, x=panel.x, y=[panel.metric])
        if panel.kind == "bars":
            return reports.BarPlot(title=panel.title, metrics=[reports.SummaryMetric(panel.metric)])
        return reports.ScatterPlot(
            title=panel.title, x=reports.SummaryMetric(panel.x), y=reports.SummaryMetric(panel.metric)
        )

    filters = [workspaces.Metric("Group") == wanted.group]
    if wanted.tag:
        filters.append(workspaces.Tags().isin([wanted.tag]))
    return workspaces.Workspace(
        entity=wanted.entity or wandb.Api().default_entity, project=wanted.project, name=wanted.name,
        sections=[
            workspaces.Section(name=name, panels=[drawn(panel) for panel in panels], is_open=True)
            for name, panels in wanted.sections.items()
        ],
        runset_settings=workspaces.RunsetSettings(
            filters=filters, groupby=[workspaces.Config(key) for key in _GROUP_BY]
        ),
    )  # fmt: skip
