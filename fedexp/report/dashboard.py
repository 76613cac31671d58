"""A wandb workspace for a table's runs, made through wandb's public workspace API.

Without credentials (or without the package `wandb-workspaces`) the dashboard is only described.
"""

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from fedexp.record.wandb import chosen, has_credentials, mode_of, project_of
from fedexp.sweep.jobs import Sweep


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
    """The dashboard: sections of panels over the runs of one wandb group, grouped by `group_by`."""

    project: str
    entity: str | None
    name: str
    group: str
    tag: str | None
    group_by: tuple[str, ...]
    sections: dict[str, tuple[Panel, ...]]

    def said(self) -> str:
        place = f"{self.entity}/{self.project}" if self.entity else self.project
        runs = f"the runs of group {self.group}" + (f" with tag {self.tag}" if self.tag else "")
        lines = [f'workspace "{self.name}" in project {place}, over {runs}, grouped by {", ".join(self.group_by)}']
        for section, panels in self.sections.items():
            lines.append(f"  {section}")
            lines += [f"    {panel.said()}" for panel in panels]
        return "\n".join(lines)


def plan(sweep: Sweep) -> Plan:
    """The dashboard of a table: curves, final values, cost, skew."""
    tracking = _tracking(sweep)
    name = sweep.table.name if sweep.scale is None else f"{sweep.table.name} ({sweep.scale})"
    sections = {
        "Accuracy": (
            Panel("lines", "Test accuracy", "test_accuracy"),
            Panel("lines", "Test accuracy over bytes sent", "test_accuracy", "bytes_total"),
            Panel("bars", "Final accuracy", "final_accuracy"),
            Panel("bars", "Best accuracy", "best_accuracy"),
        ),
        "Training": (
            Panel("lines", "Test loss", "test_loss"),
            Panel("lines", "Local loss", "local_loss"),
        ),
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
    keys = ("dataset", "partition", "algorithm")
    return Plan(
        project_of(tracking.get("project")), chosen("entity", tracking.get("entity")), name,
        chosen("group", tracking.get("group")) or sweep.table.name, sweep.scale, keys, sections,
    )  # fmt: skip


def dashboard(sweep: Sweep) -> None:
    """Make the workspace and print its address; offline or without credentials, print its description."""
    wanted, mode = plan(sweep), mode_of(_tracking(sweep).get("mode"))
    if mode in ("offline", "disabled") or not has_credentials():
        why = f"wandb is {mode}" if mode in ("offline", "disabled") else "no wandb credentials (wandb login)"
        print(f"fedexp: {why}; would make:\n{wanted.said()}")
        return
    try:
        workspace = build(wanted)
    except ImportError:
        print(
            f"fedexp: needs the package wandb-workspaces (pip install wandb-workspaces); would make:\n{wanted.said()}"
        )
        return
    workspace.save()
    print(f"fedexp: made {workspace.url}")


def build(wanted: Plan) -> Any:
    """The workspace, not yet saved."""
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
        entity=wanted.entity or _own_entity(), project=wanted.project, name=wanted.name,
        sections=[
            workspaces.Section(name=name, panels=[drawn(panel) for panel in panels], is_open=True)
            for name, panels in wanted.sections.items()
        ],
        runset_settings=workspaces.RunsetSettings(
            filters=filters, groupby=[workspaces.Config(key) for key in wanted.group_by]
        ),
    )  # fmt: skip


def _own_entity() -> str:
    import wandb

    return wandb.Api().default_entity


def _tracking(sweep: Sweep) -> DictConfig | dict[str, Any]:
    return next((job.config.tracking for job in sweep.jobs if job.config is not None), {})
