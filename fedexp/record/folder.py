"""A run's folder: outputs/<readable>-<fingerprint>/."""

import io
import json
import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from filelock import FileLock, Timeout
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

from fedexp.errors import ConfigError
from fedexp.record import files
from fedexp.record.checkpoint import Checkpoint
from fedexp.settings import fingerprint, readable


class Busy(RuntimeError):
    """Another process is at work in this run's folder."""


class RunFolder:
    """Found by fingerprint, however the run was spelt; used as a context manager it is locked."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.fingerprint = fingerprint(config)
        root = Path(config.output_root).expanduser()
        there = sorted(root.glob(f"*-{self.fingerprint}")) if root.is_dir() else []
        self.path = there[0] if there else root / f"{readable(config)}-{self.fingerprint}"
        self.checkpoint = Checkpoint(self.path, self.fingerprint)
        self._lock = FileLock(self.path / ".lock")

    def __enter__(self) -> "RunFolder":
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            files.write_text(self.path / ".owner", f"process {os.getpid()} on {socket.gethostname()}")
        except Timeout:
            owner = self.path / ".owner"
            who = owner.read_text() if owner.exists() else "another process"
            raise Busy(f"{self.path} is being worked on by {who}; run again when it is done") from None
        except OSError as error:
            raise ConfigError("output_root", self.config.output_root, f"cannot be written to ({error})") from error
        return self

    def __exit__(self, *_: object) -> None:
        (self.path / ".owner").unlink(missing_ok=True)
        if not (self.path / "config.yaml").exists():
            shutil.rmtree(self.path)  # nothing was begun: a setting was refused while building
        self._lock.release()

    def result(self) -> dict[str, Any] | None:
        """result.json, if there is a readable one."""
        try:
            found = json.loads((self.path / "result.json").read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and "status" in found else None

    def write_config(self) -> None:
        files.write_text(self.path / "config.yaml", OmegaConf.to_yaml(self.config, resolve=True))

    def write_result(self, result: dict[str, Any]) -> None:
        files.write_text(self.path / "result.json", json.dumps(result, indent=2) + "\n")
        if result["status"] != "failed":
            (self.path / "error.txt").unlink(missing_ok=True)  # that of an earlier attempt

    def write_error(self, text: str) -> None:
        """Why the run failed, for whoever looks later: a sweep goes on without it."""
        with suppress(OSError):  # which may be why it failed
            self.path.mkdir(parents=True, exist_ok=True)
            files.write_text(self.path / "error.txt", text)

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        files.write_text(self.path / "metrics.csv", pd.DataFrame(rows).to_csv(index=False))

    def write_exhibit(self, name: str, content: Figure | pd.DataFrame) -> None:
        """A figure as <name>.png, a table as <name>.csv."""
        if isinstance(content, pd.DataFrame):
            files.write_text(self.path / f"{name}.csv", content.to_csv())
            return
        picture = io.BytesIO()
        content.savefig(picture, dpi=100, format="png")
        files.write(self.path / f"{name}.png", lambda file: file.write(picture.getvalue()))

    def write_model(self, params: Any) -> None:
        files.write(self.path / "model.pt", lambda file: torch.save(params, file))
