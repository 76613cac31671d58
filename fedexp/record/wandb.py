"""Weights & Biases: online where credentials are found, else offline; never a prompt, never fatal."""

import netrc
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedexp.errors import require
from fedexp.record.tracker import Tracker
from fedexp.settings import data_used

_MODES = ("auto", "online", "offline")


@dataclass
class WandbTracker(Tracker):
    """mode: auto, online or offline. group: the sweep that a run belongs to; None: its table, if any."""

    project: str = "fedexp"
    entity: str | None = None
    group: str | None = None
    mode: str = "auto"
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        require(self.mode in _MODES, "tracking.mode", self.mode, f"must be one of {', '.join(_MODES)}")
        self._run: Any = None

    def start(self, config: DictConfig, folder: Path, fingerprint: str) -> None:
        self._safely("start", lambda: self._start(config, folder, fingerprint))

    def _start(self, config: DictConfig, folder: Path, fingerprint: str) -> None:
        import wandb  # only here, so that tracking=none needs no wandb

        online = self.mode == "online" or (self.mode == "auto" and has_credentials())
        names = {group: config[group].get("name") for group in ("dataset", "partition", "model", "algorithm")}
        names["dataset"] = data_used(config.dataset)
        table, scale = config.table.get("name"), config.scale.get("name")
        tags = [names["dataset"], names["partition"], names["model"], config.paper, table, scale, *self.tags]
        plain = OmegaConf.to_container(config, resolve=True)
        groups = {f"{name}_settings": plain.pop(name) for name in names}
        self._run = wandb.init(
            project=self.project, entity=self.entity, group=self.group or table, job_type=names["algorithm"],
            name=folder.name, id=fingerprint, resume="allow", dir=str(folder),
            tags=[str(tag) for tag in tags if tag], mode="online" if online else "offline",
            config={**plain, **names, "alpha": groups["partition_settings"].get("alpha"), **groups},
            settings=wandb.Settings(silent=True, console="off", init_timeout=60),
        )  # fmt: skip
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        if not online:
            print(f"fedexp: wandb offline; to upload: wandb sync {shlex.quote(str(folder))}/wandb/offline-run-*")

    def picture(self, name: str, path: Path) -> None:
        def send() -> None:
            import wandb

            self._run.log({name: wandb.Image(str(path))}, step=0)

        self._safely("picture", send)

    def log(self, row: dict[str, Any]) -> None:
        self._safely("log", lambda: self._run.log(row, step=row["round"]))

    def finish(self, result: dict[str, Any], failed: bool) -> None:
        def end() -> None:
            self._run.summary.update(result)
            self._run.finish(exit_code=1 if failed else 0)

        self._safely("finish", end)

    def _safely(self, what: str, act: Callable[[], None]) -> None:
        """The run's own files are complete without wandb: a failure is said once, then wandb is left alone."""
        if self._run is None and what != "start":
            return
        try:
            act()
        except Exception as error:
            self._run = None
            print(f"fedexp: wandb failed at {what} ({error}); the run goes on without it")


def has_credentials() -> bool:
    if os.environ.get("WANDB_MODE") == "offline":
        return False
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        hosts = netrc.netrc().hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return any("wandb" in host for host in hosts)
