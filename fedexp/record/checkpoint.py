"""Checkpoints: the last one and the one before it, each bound to its run by the fingerprint."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedexp import files

if TYPE_CHECKING:
    import torch


class Checkpoint:
    """Saved values of one run: nested dicts and lists of tensors, numbers and strings.

    The folder never holds more than two, including the one being written, because they may be large. Whenever the
    process is killed, one of them is whole.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.newest, self.previous = folder / "checkpoint.pt", folder / "checkpoint.previous.pt"
        self.fingerprint = fingerprint
        self.unfinished = folder / "checkpoint.new.pt"  # one name: a killed process's file is overwritten
        self._good: Path | None = self.newest  # the file that a save must not lose

    def save(self, values: dict[str, Any]) -> None:
        """Write the newest checkpoint; the last good one becomes the previous. Raises OSError, e.g. on a full disk."""
        for path in {self.newest, self.previous} - {self._good}:
            path.unlink(missing_ok=True)
        held = {"fingerprint": self.fingerprint, "values": values}
        try:
            files.write_in_place(self.unfinished, lambda file: files.dump(held, file))
            if self._good == self.newest and self.newest.exists():
                self.newest.replace(self.previous)
                self._good = self.previous
            self.unfinished.replace(self.newest)
        finally:
            self.unfinished.unlink(missing_ok=True)
        self._good = self.newest

    def load(self, device: "torch.device") -> tuple[dict[str, Any] | None, list[str]]:
        """The newest good values, or None; and messages about files that had to be refused.

        Tensors that were on a CPU stay there; all others are moved to `device`.
        """
        refused = []
        for path in (self.newest, self.previous):
            if not path.exists():
                continue
            try:
                held = files.load(path, files.onto(device))
            except files.Damaged as damage:
                refused.append(f"{path} {damage}; not used")
                continue
            own = isinstance(held, dict) and {"fingerprint", "values"} <= held.keys()
            if own and held["fingerprint"] == self.fingerprint:
                self._good = path
                return held["values"], [*refused, *([f"{path} is used instead"] if refused else [])]
            refused.append(f"{path} belongs to {'another run' if own else 'no run'}; not used")
        self._good = None
        return None, [*refused, *(["no good checkpoint is left: starting afresh"] if refused else [])]

    def settle(self) -> None:
        """Keep only the newest of two good checkpoints; called when nothing more is to be saved."""
        if self._good == self.newest and self.newest.exists():
            self.previous.unlink(missing_ok=True)
