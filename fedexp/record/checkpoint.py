"""Checkpoints: the last good one and the one before it, each bound to its run by the fingerprint."""

from pathlib import Path
from typing import Any

import torch
from torch.serialization import default_restore_location

from fedexp.record import files

_NAMES = ("checkpoint.pt", "checkpoint.previous.pt")


class Checkpoint:
    """Saved values of one run: nested dicts and lists of tensors, numbers and strings."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.paths = [folder / name for name in _NAMES]
        self.fingerprint = fingerprint

    def save(self, values: dict[str, Any]) -> None:
        """Write the newest; what was the newest becomes the previous one."""
        newest, previous = self.paths
        held = {"fingerprint": self.fingerprint, "values": values}
        fresh = newest.with_name("checkpoint.new.pt")
        files.write(fresh, lambda file: torch.save(held, file))
        if newest.exists():
            newest.replace(previous)
        fresh.replace(newest)

    def load(self, device: torch.device) -> tuple[dict[str, Any] | None, list[str]]:
        """The newest good values, or None; and a line for each file that had to be refused.

        Tensors that were on a CPU stay there (algorithms keep their books on it); all others come to `device`.
        """
        refused = []

        def place(storage: torch.UntypedStorage, tag: str) -> torch.UntypedStorage:
            return storage if tag == "cpu" else default_restore_location(storage, str(device))

        for path in self.paths:
            if not path.exists():
                continue
            try:
                held = torch.load(path, map_location=place, weights_only=True)
                owner = held["fingerprint"]
                if owner != self.fingerprint:
                    refused.append(f"{path} belongs to another run ({owner}); not used")
                    continue
                return held["values"], refused
            except Exception as error:  # torch.load raises many kinds for torn files
                refused.append(f"{path} cannot be read ({type(error).__name__}); not used")
        return None, refused

    def remove(self) -> None:
        for path in self.paths:
            path.unlink(missing_ok=True)
