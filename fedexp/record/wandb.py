"""Weights & Biases: online if credentials are found, else offline; it never prompts, and a failure never ends the run.

wandb's own environment variables apply to keys that the config leaves open (null).
"""

import netrc
import os
import shlex
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from omegaconf import DictConfig, OmegaConf

from fedexp.config.fingerprint import data_used
from fedexp.errors import require
from fedexp.record.result import read_rows
from fedexp.record.tracker import Tracker, harmless, leaves

PATIENCE = 8  # seconds to wait for an answer from wandb's server
_MODES = ("auto", "online", "offline", "disabled")
_ENVIRONMENT = {"project": "WANDB_PROJECT", "entity": "WANDB_ENTITY", "group": "WANDB_RUN_GROUP", "mode": "WANDB_MODE"}


@dataclass
class WandbTracker(Tracker):
    """A key that is None is read from the environment (WANDB_PROJECT, WANDB_ENTITY, WANDB_RUN_GROUP, WANDB_MODE); if
    that is not set either, project is fedexp, group the run's table or else its sweep, and mode auto.

    mode: auto (online if credentials are found, else offline), online, offline or disabled (no tracking). Raises
    ConfigError for another mode. model: whether model.pt is uploaded too; pictures and tables always are.
    """

    project: str | None = None
    entity: str | None = None
    group: str | None = None
    mode: str | None = None
    tags: list[str] = field(default_factory=list)
    model: bool = False

    def __post_init__(self) -> None:
        self.project, self.mode = chosen("project", self.project) or "fedexp", mode_of(self.mode)
        self.entity, self.group = chosen("entity", self.entity), chosen("group", self.group)
        self.active = self.mode != "disabled"

    @harmless
    def start(self, config: DictConfig, folder: Path, fingerprint: str) -> None:
        import wandb  # only here, so that tracking=none needs no wandb

        online = self.mode == "online" or (self.mode == "auto" and has_credentials())
        server = os.environ.get("WANDB_BASE_URL") or wandb.setup().settings.base_url
        if online and not answers(server):
            print(f"fedexp: wandb's server {server} does not answer within {PATIENCE} s")
            online = False
        names = {group: config[group].get("name") for group in ("dataset", "partition", "model", "algorithm")}
        names["dataset"] = data_used(config.dataset)
        table, scale = config.table.get("name"), config.scale.get("name")
        tags = [names["dataset"], names["partition"], names["model"], config.paper, table, scale, *self.tags]
        plain: Any = OmegaConf.to_container(config, resolve=True)
        groups = {f"{name}_settings": plain.pop(name) for name in names}
        self._folder = folder
        self._run: Any = wandb.init(
            project=self.project, entity=self.entity, group=self.group or table or config.sweep,
            job_type=names["algorithm"], name=folder.name, id=fingerprint, resume="allow", dir=str(folder),
            tags=[str(tag) for tag in tags if tag], mode="online" if online else "offline",
            config={**plain, **names, "alpha": groups["partition_settings"].get("alpha"), **groups},
            settings=wandb.Settings(silent=True, console="off", init_timeout=60),
        )  # fmt: skip
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        step = self._run.starting_step if online else 0  # of a resumed run: the step after the last one in wandb
        self._held = set(range(step)) if online else _rounds_in(folder / "wandb")
        for row in read_rows(folder):  # rows that a killed process logged and wandb did not write
            self.log(row)
        if not online:
            print(f"fedexp: wandb offline; to upload: wandb sync {shlex.quote(str(folder))}/wandb/offline-run-*")

    @harmless
    def picture(self, name: str, path: Path) -> None:
        import wandb

        self._run.log({name: wandb.Image(str(path))}, step=0)

    @harmless
    def log(self, row: dict[str, Any]) -> None:
        if row["round"] in self._held:  # a resumed run's history already has this row
            self._run.summary.update(row)
            return
        # Committed at once: a row kept back until the next one would reach the summary after what `finish` writes.
        self._run.log(row, step=row["round"], commit=True)

    @harmless
    def finish(self, result: dict[str, Any], failed: bool) -> None:
        self._run.summary.update(result)
        if paths := leaves(self._folder):
            self._keep("results", paths)
        if self.model and not failed:
            self._keep("model", [self._folder / "model.pt"])
        self._run.finish(exit_code=1 if failed else 0)

    def _keep(self, kind: str, paths: list[Path]) -> None:
        """Upload files as one artifact of the run; a resumed run makes a new version of it."""
        import wandb

        artifact = wandb.Artifact(f"{kind}-{self._run.id}", type=kind)
        for path in paths:
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)


def answers(server: str) -> bool:
    """Whether wandb's server answers in time, and not with a server error."""
    found: list[bool] = []

    def ask() -> None:
        try:
            words = {"Content-Type": "application/json"}
            with urlopen(Request(f"{server}/graphql", b'{"query": "{__typename}"}', words), timeout=PATIENCE):
                found.append(True)
        except HTTPError as error:
            found.append(error.code < 500)
        except Exception:  # no such host, no connection, no HTTP
            found.append(False)

    asking = threading.Thread(target=ask, daemon=True)  # a name lookup does not obey the timeout
    asking.start()
    asking.join(PATIENCE)
    return any(found)


def _rounds_in(folder: Path) -> set[int]:
    """The rounds whose rows are in the files that wandb has written below a folder."""
    from fedexp.record import wandb_file

    rounds = set()
    for file in folder.glob("*run-*/*.wandb"):
        try:
            for record in wandb_file.read(file)["history"]:
                row = {item.key or "/".join(item.nested_key): item.value_json for item in record.item}
                rounds |= {int(row["round"])} if "round" in row else set()
        except Exception as error:  # another version's format, or damaged: its rows are sent again
            print(f"fedexp: {file} cannot be read ({error}); what it holds is sent again")
    return rounds


def chosen(name: str, given: str | None) -> str | None:
    """A key of the config, or if it is None, wandb's environment variable for it; None if neither is set."""
    return given if given is not None else os.environ.get(_ENVIRONMENT[name]) or None


def mode_of(given: str | None) -> str:
    """auto, online, offline or disabled. Raises ConfigError for anything else, naming the key or the variable."""
    found = chosen("mode", given) or "auto"
    key = "WANDB_MODE" if given is None else "tracking.mode"
    require(found in _MODES, key, found, f"must be one of {', '.join(_MODES)}")
    return found


def has_credentials() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        hosts = netrc.netrc().hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return any("wandb" in host for host in hosts)
