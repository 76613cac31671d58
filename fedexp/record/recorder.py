"""Recording a run: rows of metrics.csv, checkpoints, pictures and tables, and result.json at its end."""

import logging
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import pandas as pd
from omegaconf import DictConfig
from torch import Tensor, tensor

from fedexp import files
from fedexp.config import launch
from fedexp.config.fingerprint import data_used
from fedexp.engine import State, client_rows, ranks
from fedexp.errors import Unsaved, require
from fedexp.measure import accuracy
from fedexp.measure.reference import Reference
from fedexp.measure.skew import mean_emd
from fedexp.record import confusion, partition
from fedexp.record.folder import RunFolder, drawn
from fedexp.record.history import History, Row
from fedexp.record.result import commit, versions
from fedexp.record.saving import Artifacts, Saving
from fedexp.record.status import DONE, Status
from fedexp.record.tracker import Tracker
from fedexp.tree import Params
from fedexp.world import World

log = logging.getLogger(__name__)

_CHECKPOINT = "checkpoint.pt"
_AGAIN = "mend the cause given above, and run the same command again"


@lru_cache(maxsize=8)
def _partition_drawn(label_counts: tuple[tuple[int, ...], ...], title: str) -> dict[str, bytes]:
    """Many of a sweep's runs have the same partition: drawing takes longer than a round of a small one."""
    return drawn(partition.picture(tensor(label_counts), title))


class Recorder:
    """Records one run, and the State of its reference. world: that of its last stage. class_names: [C].

    If a file cannot be written, as on a full disk, the run goes on with what was saved before: the failure is reported
    at most once a minute, and writing is tried again. At the end missing files are listed, and a missing result is an
    error.
    """

    def __init__(
        self, config: DictConfig, folder: RunFolder, tracker: Tracker, reference: Reference, world: World,
        class_names: list[str] | None,
    ) -> None:  # fmt: skip
        self.config, self.folder, self.tracker = config, folder, tracker
        self.reference, self.world, self.class_names = reference, world, class_names
        self.history = History()
        self.partition_hash = world.partition_hash()
        self.commit = commit()  # at the start: the checkout may move on while a run lasts
        self.saved, self.patience = time.monotonic(), config.checkpoint_seconds
        self.saving = Saving(folder, config.pictures)
        self.asked: int | None = None  # the number of rounds asked for when the State that `resume` gives was saved

    def resume(self, is_due: Callable[[int], bool]) -> State | None:
        """The run's State as last saved. The reference's State is restored, and the history with the rows of rounds
        that are due. None where no good checkpoint exists. Raises ConfigError on another kind of device."""
        device = self.world.device
        values, refused = ranks.from_first(
            lambda: self.folder.checkpoint.load(device), device,
            sent=lambda found: (client_rows.without_rows(found[0]), found[1]),
        )  # fmt: skip
        for line in refused:
            log.warning(line)
        if values is None:
            done = self.folder.result()
            if done is not None and done["rounds"] and not refused:
                log.warning("no state is left of the %d rounds that were carried out: starting afresh", done["rounds"])
            return None
        if values["partition_hash"] != self.partition_hash:
            log.warning("the checkpoint was made with other data (the partition differs); starting afresh")
            return None
        if values.get("checksum", self.world.checksum) != self.world.checksum:
            log.warning(
                "the examples are not those that this run was begun with, so that its rounds cannot be compared; "
                "bring them back, or delete %s", self.folder.path,
            )  # fmt: skip
        begun, here = values["device"], self.world.device.type
        require(
            begun == here, "hardware.device", here,
            f"this run was begun on {begun}, and so is its saved state; resume it there, or delete {self.folder.path}",
        )  # fmt: skip
        self.history = History(**values["history"])
        # A run of fewer rounds evaluated its last round, which this run may not evaluate.
        self.history.rows = [row for row in self.history.rows if is_due(row["round"])]
        self.reference.state, self.asked = values["reference"], values.get("rounds")
        return values["state"]

    def begin(self, state: State | None) -> None:
        """Write what is known before the first round. state: the State to resume from; None: a new run."""
        if not launch.is_first():
            return
        folder = self.folder
        self.saving.write("config.yaml", folder.write_config)
        kinds = ("csv", "png", "pdf") if self.config.pictures else ("csv",)
        if state is None or not all((folder.path / f"partition.{kind}").exists() for kind in kinds):
            counts = self.world.label_counts
            self.saving.tables({"partition": partition.table(counts, self.class_names)})
            known = tuple(map(tuple, counts.tolist())), self._partition_title()
            self.saving.picture("partition", partial(_partition_drawn, *known))
        if state is None:
            (folder.path / "metrics.csv").unlink(missing_ok=True)  # left by an attempt of which nothing else remains
        else:
            self.saving.write("metrics.csv", folder.write_metrics, self.history.rows)
        self.tracker.start(self.config, folder.path, folder.fingerprint)
        if state is None and self.config.pictures and (folder.path / "partition.png").exists():
            self.tracker.picture("partition", folder.path / "partition.png")
        if state is not None:
            log.info("going on after round %d", state["round"])

    def _partition_title(self) -> str:
        """Data set, partition, mean EMD, and numbers of examples and clients."""
        config, counts = self.config, self.world.label_counts
        name, alpha = str(config.partition.get("name", "own")), config.partition.get("alpha")
        is_new = isinstance(alpha, int | float) and f"{alpha:g}" not in name and str(alpha) not in name
        told = f", alpha {alpha:g}" if is_new else ""
        held = f"{int(counts.sum()):,} examples, {len(counts)} clients"
        return f"{data_used(config.dataset)}, {name}{told}, mean EMD {mean_emd(counts):.2f}\n{held}"

    def add(self, row: Row, tables: dict[str, pd.DataFrame]) -> Row:
        """Record an evaluated round: its row, which is returned with totals, and its tables by file name."""
        row = self.history.add(row)
        self.saving.write("metrics.csv", self.folder.write_metrics, self.history.rows)
        self.saving.tables(tables)
        self.saving.again()
        self.tracker.log(row)
        return row

    def save(self, state: State) -> None:
        """Write a checkpoint. Raises ConfigError for a State that no checkpoint can hold."""
        self._check(state)
        values = {
            "state": state, "reference": self.reference.state, "history": vars(self.history),
            "partition_hash": self.partition_hash, "checksum": self.world.checksum, "device": self.world.device.type,
            "rounds": self.config.rounds,
        }  # fmt: skip
        before = time.monotonic()
        self.saving.write(_CHECKPOINT, self.folder.checkpoint.save, values, again=False)
        self.saved = time.monotonic()
        if self.config.checkpoint_seconds:  # for large client memory: saving takes at most a twentieth of the time
            self.patience = max(self.config.checkpoint_seconds, 20 * (self.saved - before))

    def save_if_due(self, state: State) -> None:
        """Write a checkpoint if the last one is old enough. The State is looked at before and after the first round, so
        that one that cannot be saved does not come to light only at the end."""
        if state["round"] < 2:
            self._check(state)
        if time.monotonic() - self.saved >= self.patience:
            self.save(state)

    def _check(self, state: State) -> None:
        wrong = files.unsavable(state)
        require(
            not wrong, "algorithm", self.config.algorithm["_target_"],
            f"keeps {wrong} in its State or memory; only tensors, plain numbers and texts can be saved, and dicts and "
            "lists of these",
        )  # fmt: skip

    def finish(self, params: Params, answers: Tensor, artifacts: Artifacts) -> None:
        """Write the last files. answers: the confusion matrix, int64 [C, C]. Raises Unsaved if a file of the result is
        missing afterwards; a checkpoint does not count, since only the rounds since the last one are lost with it."""
        if not launch.is_first():
            return
        self.folder.checkpoint.settle()
        self.saving.write("model.pt", self.folder.write_model, params)  # what matters most, first
        names = self.class_names or [str(label) for label in range(self.world.classes)]
        by_class = confusion.per_class(answers, self.world.test_counts, names)
        self.saving.tables({"confusion": confusion.table(answers, names), "class_accuracy": by_class})
        self.saving.artifacts(artifacts)
        self.saving.picture("confusion", lambda: drawn(confusion.picture(answers, names)))
        self.saving.again()
        if missing := self.saving.missing.keys() - {_CHECKPOINT}:
            raise Unsaved(f"could not save {', '.join(sorted(missing))} in {self.folder.path}; {_AGAIN}")

    def end(self, status: Status, added: dict[str, Any]) -> dict[str, Any]:
        """Write result.json, however the run ended. added: what the algorithm and its parts add to it."""
        rows = self.history.rows
        chance, most_by_chance = accuracy.by_chance(self.world)
        result = {
            "status": str(status),  # wandb would record an enumeration by its name
            **self.history.summary(list(self.config.targets)),
            "at_chance": bool(rows) and rows[-1]["test_accuracy"] <= most_by_chance,
            "emd": mean_emd(self.world.label_counts),
            "seed": self.config.seed,
            "fingerprint": self.folder.fingerprint,
            "partition_hash": self.partition_hash,
            "examples": self.world.examples,
            "versions": versions(),
            "commit": self.commit,
        }
        if taken := result.keys() & added.keys():
            log.warning(
                "an algorithm's summary cannot replace these entries of result.json: %s", ", ".join(sorted(taken))
            )
        result |= {name: value for name, value in added.items() if name not in taken}
        if missing := self.saving.missing:
            log.warning("not saved: %s", "; ".join(f"{name} ({each.error})" for name, each in missing.items()))
        self.saving.write("result.json", self.folder.write_result, result)
        self.tracker.finish(result, failed=status != Status.FINISHED)
        if status in DONE and "result.json" in missing:
            raise Unsaved(f"could not save result.json in {self.folder.path}; {_AGAIN}")
        if status in DONE and not self.history.answers:
            log.warning("no client's work arrived in any round, so that the global model is as it was at the beginning")
        elif status == Status.DIVERGED:
            log.warning(
                "the loss of round %d is not a finite number, and the run has ended there: a smaller local.lr, or "
                "local.max_grad_norm, may help", rows[-1]["round"],
            )  # fmt: skip
        elif status in DONE and result["at_chance"]:
            log.warning(
                "the final accuracy is no better than chance may give (always the commonest class: %.2f%%): the global "
                "model has not learned, or has collapsed", 100 * chance,
            )  # fmt: skip
        return result
