"""Writing a run's files, on disks that may be full: what cannot be saved is noted, and tried again."""

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from fedexp.config import launch
from fedexp.record.folder import RunFolder, drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

Artifacts = dict[str, "Figure | pd.DataFrame"]
_OWN_FILES = ("metrics", "clients", "partition", "confusion", "class_accuracy", "information")
_SECONDS_BETWEEN_COMPLAINTS = 60


class Missing(NamedTuple):
    """Why a file is missing, and how to write it; None where the next one of its name replaces it."""

    error: OSError
    write: Callable[[], None] | None


class Saving:
    """Writes a run's files; of its several processes only the first one does.

    pictures: whether pictures are drawn. missing: what could not be written, by file name. A failure is reported at
    most once a minute.
    """

    def __init__(self, folder: RunFolder, pictures: bool) -> None:
        self.folder, self.pictures = folder, pictures
        self.missing: dict[str, Missing] = {}
        self.complained = -math.inf

    def write(self, name: str, write: Callable[..., None], *content: Any, again: bool = True) -> None:
        """Write a file, or note that it is missing. again: whether it is worth writing later."""
        if not launch.is_first():
            return
        try:
            write(*content)
        except OSError as error:
            self.missing[name] = Missing(error, partial(write, *content) if again else None)
            if time.monotonic() - self.complained >= _SECONDS_BETWEEN_COMPLAINTS:
                self.complained = time.monotonic()
                others = "earlier files are intact" if self.folder.path.is_dir() else "the run's folder is gone"
                log.warning("could not save %s (%s); %s; going on and trying again", name, error, others)
            return
        if self.missing.pop(name, None) and not self.missing:
            log.info("all files that could not be saved are saved now")
            self.complained = -math.inf

    def again(self) -> None:
        """Try again to write missing files."""
        for name, each in list(self.missing.items()):
            if each.write is not None:
                self.write(name, each.write)

    def tables(self, tables: dict[str, pd.DataFrame]) -> None:
        """Write tables, by file name."""
        for name, table in tables.items():
            self.write(f"{name}.csv", self.folder.write_artifact, name, table)

    def picture(self, name: str, draw: Callable[[], dict[str, bytes]]) -> None:
        """Write a picture, if pictures are drawn. One that cannot be drawn does not end the run."""
        if not self.pictures or not launch.is_first():
            return
        try:
            content = draw()
        except Exception as error:  # matplotlib's are of many kinds, such as those of LaTeX, or of formulas in a title
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            log.warning("no picture of %s: it cannot be drawn (%s)", name, reason)
        else:
            self.write(f"{name}.png", self.folder.write_artifact, name, content)

    def artifacts(self, artifacts: Artifacts) -> None:
        """Write an algorithm's tables and pictures, except those under names of fedexp's own files or with a slash, and
        what is neither."""
        wrong = [str(name) for name in artifacts if name in _OWN_FILES or "/" in str(name)]
        if wrong:
            right = "use names without / that none of fedexp's own files has"
            log.warning("left out: artifacts named %s; %s", ", ".join(wrong), right)
        tables = {name: each for name, each in artifacts.items() if isinstance(each, pd.DataFrame)}
        figures: dict[str, Any] = {name: each for name, each in artifacts.items() if hasattr(each, "savefig")}
        other = [str(name) for name in artifacts if name not in {**tables, **figures}]
        if other:
            log.warning("left out: artifacts that are neither data frames nor figures: %s", ", ".join(other))
        self.tables({name: table for name, table in tables.items() if str(name) not in wrong})
        for name, figure in figures.items():
            if str(name) not in wrong:
                self.picture(name, partial(drawn, figure))
