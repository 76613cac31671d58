"""A run's folder: outputs/<readable>-<fingerprint>/. torch, pandas and matplotlib are imported only where something is
written with them: finding a folder does not need them."""

import io
import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from omegaconf import OmegaConf

from fedexp import files
from fedexp.config.fingerprint import fingerprint, readable
from fedexp.errors import Busy, ConfigError, require
from fedexp.record.checkpoint import Checkpoint
from fedexp.record.result import ends, first_rounds, read_rows
from fedexp.record.status import DONE, Status

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Folders(dict[Path, dict[str, Path]]):
    """The folders of runs in each place by their fingerprint; a place is read when it is first asked for."""

    def __missing__(self, root: Path) -> dict[str, Path]:
        there = sorted(root.iterdir(), reverse=True) if root.is_dir() else []  # of several the first by name counts
        self[root] = {path.name.rpartition("-")[2]: path for path in there}
        return self[root]


class RunFolder:
    """The folder of a run, found by its fingerprint, whatever its readable name; locked within its context.

    A folder that the context created and that holds only its lock at the end is removed again: a setting was refused
    before anything had begun. No other folder is ever removed.
    """

    def __init__(self, config: Mapping[Any, Any], known: str | None = None, folders: Folders | None = None) -> None:
        """known: the config's fingerprint; folders: what `Folders` has found. Both save time where there are thousands
        of runs, and so do configs given as plain values. Raises ConfigError if output_root cannot be read."""
        self.config = config
        self.fingerprint = fingerprint(config) if known is None else known
        root = Path(config["output_root"]).expanduser()
        places = Folders() if folders is None else folders
        try:
            found = places[root].get(self.fingerprint)
        except OSError as error:  # no permission, or a name that is too long
            raise ConfigError("output_root", config["output_root"], f"cannot be read ({error.strerror})") from error
        self.path = root / f"{readable(config)}-{self.fingerprint}" if found is None else found
        self.checkpoint = Checkpoint(self.path, self.fingerprint)
        self._lock, self._created = FileLock(self.path / ".lock"), False

    def __enter__(self) -> "RunFolder":
        try:
            self._created = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            self._clear()
            files.write_text(self.path / ".owner", f"process {os.getpid()} on {socket.gethostname()}")
        except Timeout:
            owner = self.path / ".owner"
            who = owner.read_text() if owner.exists() else "another process"
            raise Busy(f"{self.path} is being worked on by {who}; run again when it is done") from None
        except OSError as error:
            self._release()
            raise ConfigError("output_root", self.config["output_root"], f"cannot be written to ({error})") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def is_busy(self) -> bool:
        """Whether a process is at work in the folder."""
        if not self.path.is_dir():
            return False  # asking for the lock would create the folder
        try:
            with self._lock.acquire(timeout=0):
                return False
        except Timeout:
            return True
        except OSError:
            return False  # no process can be at work where it cannot write its lock

    def _clear(self) -> None:
        """Remove files that saves of killed processes left behind. Only the holder of the lock may do so."""
        with suppress(OSError):  # leftovers only take room on the disk
            for path in [*self.path.glob(".*.tmp"), self.checkpoint.unfinished]:
                path.unlink(missing_ok=True)

    def _release(self) -> None:
        if self._lock.is_locked:
            with suppress(OSError):  # nothing is lost with it
                (self.path / ".owner").unlink(missing_ok=True)
        with suppress(OSError):  # harmless: an empty folder stays, perhaps with another process's new lock
            if self._created and {entry.name for entry in self.path.iterdir()} <= {".lock"}:
                (self.path / ".lock").unlink(missing_ok=True)
                self.path.rmdir()
        self._lock.release()

    def result(self) -> dict[str, Any] | None:
        """result.json, if there is a readable one."""
        try:
            found = json.loads((self.path / "result.json").read_text())
        except (OSError, ValueError):
            return None
        if (
            not isinstance(found, dict)
            or not isinstance(found.get("status"), str)
            or type(found.get("rounds")) is not int
        ):
            return None
        accuracy = found.get("final_accuracy", "")  # null: no round was evaluated
        return found if accuracy is None or isinstance(accuracy, int | float) else None

    def finished(self, rounds: int) -> dict[str, Any] | None:
        """The result after `rounds` rounds, if this run has carried them out. If it went further, the result is made
        from its metrics.csv. Raises ConfigError where that is impossible because that round was not evaluated."""
        result = self.result()
        if result is None or result["status"] not in DONE:
            return None
        if result["rounds"] <= rounds:
            return result if result["rounds"] == rounds or result["status"] == Status.DIVERGED else None
        rows = read_rows(self.path)
        right = f"cannot be read, so the result after {rounds} of its {result['rounds']} rounds is not known"
        require(bool(rows), "", self.path / "metrics.csv", f"{right}; delete the folder to run it again")
        require(
            rounds in ends(rows), "rounds", rounds,
            f"this run has been carried out before, for {result['rounds']} rounds; its model was evaluated after "
            f"{_in_words(ends(rows))}: ask for one of these, or for more",
        )  # fmt: skip
        return first_rounds(rounds, rows, result, list(self.config["targets"]))

    def write_config(self) -> None:
        files.write_text(self.path / "config.yaml", OmegaConf.to_yaml(self.config, resolve=True))

    def write_result(self, result: dict[str, Any]) -> None:
        files.write_text(self.path / "result.json", json.dumps(result, indent=2, default=_plain) + "\n")
        if result["status"] != Status.FAILED:
            (self.path / "error.txt").unlink(missing_ok=True)  # written by an earlier attempt

    def write_error(self, text: str) -> None:
        """Write why the run failed, to be read later: a sweep goes on without it."""
        with suppress(OSError):  # the reason for the failure may be the disk
            self.path.mkdir(parents=True, exist_ok=True)
            files.write_text(self.path / "error.txt", text)

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        import pandas as pd

        files.write_text(self.path / "metrics.csv", pd.DataFrame(rows).to_csv(index=False))

    def write_artifact(self, name: str, content: "Figure | pd.DataFrame | dict[str, bytes]") -> None:
        """A figure, or what `drawn` has made of it, as <name>.png and <name>.pdf; a table as <name>.csv."""
        import pandas as pd

        if isinstance(content, pd.DataFrame):
            content = {"csv": content.to_csv().encode()}
        for kind, written in (content if isinstance(content, dict) else drawn(content)).items():
            files.write_bytes(self.path / f"{name}.{kind}", written)

    def write_model(self, params: Any) -> None:
        files.write(self.path / "model.pt", lambda file: files.save(params, file))


def _plain(value: Any) -> Any:
    """What an algorithm's summary gives as a number of another library, as numbers; anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def drawn(figure: "Figure") -> dict[str, bytes]:
    """A figure as a PNG and as a PDF. Each is drawn once: `savefig` would draw it twice, the first time to lay it out,
    which the canvases do themselves. The PDF has TrueType fonts: journals refuse matplotlib's default, Type 3."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    figure.set_dpi(100)
    png, pdf = io.BytesIO(), io.BytesIO()
    FigureCanvasAgg(figure).print_png(png)
    figure.set_layout_engine("none")  # it is already laid out
    with rc_context({"pdf.fonttype": 42}):
        FigureCanvasPdf(figure).print_pdf(pdf)
    return {"png": png.getvalue(), "pdf": pdf.getvalue()}


def _in_words(rounds: list[int]) -> str:
    """Rounds as text: round 3; rounds 1, 2, 3; rounds 1, 2, 3, ..., 60."""
    if len(rounds) > 12:
        return f"rounds {', '.join(map(str, rounds[:3]))}, ..., {rounds[-1]}"
    return f"round{'s' if len(rounds) > 1 else ''} {', '.join(map(str, rounds))}"
