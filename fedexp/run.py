"""The loop of a run: resume, round, evaluate, measure, record."""

import math
import time
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from fedexp.algorithms.fedavg import FedAvg
from fedexp.build import build_algorithm, build_dataset, build_model, build_tracker, build_world
from fedexp.engine import Engine, Exchange
from fedexp.engine.client import Interrupted
from fedexp.engine.exchange import State
from fedexp.errors import require
from fedexp.measure import accuracy
from fedexp.measure.cohort import cohort_measures
from fedexp.measure.communication import traffic
from fedexp.measure.skew import mean_emd
from fedexp.randomness import generator
from fedexp.record import confusion, partition
from fedexp.record.display import Display
from fedexp.record.folder import RunFolder
from fedexp.record.interrupt import Stop
from fedexp.record.result import commit, summary, versions
from fedexp.reference import Reference
from fedexp.world import World


def run(config: DictConfig) -> dict[str, Any]:
    """Carry out one run, or find it done: its result.json. Raises Interrupted after a signal.

    The same config again finds a finished run, and takes up an unfinished one where it was saved.
    """
    folder = RunFolder(config)
    with folder, Stop() as stop:
        result = folder.result()
        if result is not None and result["status"] in ("finished", "diverged"):
            display = Display(config.rounds, config.rounds)
            display.summary("this run was finished before; delete its folder to run it again", result)
            display.say(str(folder.path))
            return result
        result = Run(config, folder, stop).carry_out()
        if stop():  # in the last round: this run is done, a sweep's next ones are not to begin
            raise Interrupted(stop.signal)
        return result


class Run:
    """One run in progress: everything built, and what has been measured so far."""

    def __init__(self, config: DictConfig, folder: RunFolder, stop: Stop) -> None:
        self.config, self.folder, self.stop = config, folder, stop
        dataset = build_dataset(config)
        shared = build_world(config, dataset)
        self.algorithm: FedAvg = build_algorithm(config)
        self.algorithm.check(shared)
        self.world: World = self.algorithm.adapt(shared)
        self.model = build_model(config, self.world)
        local, hardware = OmegaConf.to_object(config.local), OmegaConf.to_object(config.hardware)
        self.engine = Engine(self.model, self.world, local, hardware, config.seed, stop)
        self.reference = Reference(
            OmegaConf.to_object(config.measures), config.rounds, config.clients_per_round,
            self.model, self.world, local, hardware, config.seed, stop,
        )  # fmt: skip
        self.tracker = build_tracker(config)
        self.class_names = dataset.class_names or [str(label) for label in range(dataset.classes)]
        self.emd = mean_emd(self.world.label_counts)
        self.chance, self.most_by_chance = accuracy.by_chance(self.world)
        self.rows: list[dict[str, Any]] = []
        self.bytes = [0, 0]  # up, down
        self.examples = 0
        self.seconds = 0.0
        folder.write_config()
        folder.write_exhibit("partition", partition.table(self.world.label_counts, dataset.class_names))
        folder.write_exhibit("partition", partition.picture(self.world.label_counts))
        self.partition_hash = self.world.partition_hash()
        self.commit = commit()  # at the start: the checkout may move on while a run lasts

    def carry_out(self) -> dict[str, Any]:
        """All rounds; result.json at the end, whatever the end was."""
        resumed = self._resume()
        self.tracker.start(self.config, self.folder.path, self.folder.fingerprint)
        status, added, began = "failed", {}, time.monotonic()
        try:
            state = resumed or self._begin()
            if state["round"] == 0:
                self.tracker.picture("partition", self.folder.path / "partition.png")
            self.display = Display(self.config.rounds, state["round"])
            if time.monotonic() - began >= self.config.checkpoint_seconds:
                self._save(state)  # a long warm-up is not done twice
            with self.display:
                state, ended = self._rounds(state)
            added = self.algorithm.conclude(state, self.engine)
            self._exhibit(state)
            self._exhibit_confusion(state)
            self.folder.write_model(state["params"])
            status = ended  # not before: a finished run has all of its files
        except Interrupted:
            status = "interrupted"
            raise Interrupted(self.stop.signal) from None
        finally:
            self.engine.close()
            self.reference.close()
            result = self._result(status) | added
            self.folder.write_result(result)
            self.tracker.finish(result, failed=status != "finished")
        self.folder.checkpoint.remove()
        self.display.summary(self.folder.path.name, result)
        if result["at_chance"]:
            self.display.say(
                f"fedexp: the final accuracy is that of chance (always the commonest class: {self.chance:.2%}): "
                "this model has not learned, or has unlearned"
            )
        self.display.say(str(self.folder.path))
        return result

    def _begin(self) -> State:
        state = self.algorithm.init(self.world, self.model, self.model.params())
        state = self.algorithm.prepare(state, self.world, self.engine)
        self.reference.begin(state["params"])
        return state

    def _rounds(self, state: State) -> tuple[State, str]:
        config, saved, patience = self.config, time.monotonic(), self.config.checkpoint_seconds
        while state["round"] < config.rounds:
            round = state["round"]
            try:
                self.reference.follow(round + 1)
                began = time.monotonic()
                state = self.algorithm.round(state, self.world, self.engine, generator(config.seed, "round", round))
            except Interrupted:
                self._save(state)
                raise
            exchanges = self.engine.drain()
            up, down = traffic(exchanges)
            self.bytes = [self.bytes[0] + up, self.bytes[1] + down]
            self.examples += sum(each.examples for each in exchanges)
            last = (config.rounds, self.reference.rounds)
            due = state["round"] % config.evaluate_every == 0 or state["round"] in last
            row = self._measure(state, exchanges, up, down) if due else None
            del exchanges  # a cohort's models: not kept beside the next round's
            self.seconds += time.monotonic() - began
            if row is not None:
                self._record(row)
            self.display.advance(row)
            if row is not None and not math.isfinite(row["local_loss"] + row["test_loss"]):
                return state, "diverged"
            if config.exhibit_every and state["round"] % config.exhibit_every == 0:
                self._exhibit(state)
            if time.monotonic() - saved >= patience and state["round"] < config.rounds:
                before = time.monotonic()
                self._save(state)
                saved = time.monotonic()
                if patience:  # large client memory: never more than a twentieth of the time goes into saving
                    patience = max(config.checkpoint_seconds, 20 * (saved - before))
        return state, "finished"

    def _measure(self, state: State, exchanges: list[Exchange], up: int, down: int) -> dict[str, Any]:
        """A row of metrics.csv but for its times; the only place where numbers leave the device."""
        score, loss = accuracy.test(*self.algorithm.examined(state, self.engine))
        row: dict[str, Any] = {
            "round": state["round"],
            "test_accuracy": float(score),
            "test_loss": float(loss),
        }
        cohort = cohort_measures(
            exchanges, self.model.weights, lambda ids: self.algorithm.centre(state, ids), self.world.label_counts
        )
        row |= {
            "local_loss": cohort.pop("local_loss"),
            "bytes_up": up, "bytes_down": down, "bytes_total": sum(self.bytes),
            "divergence_mean": cohort.pop("divergence_mean"), "divergence_max": cohort.pop("divergence_max"),
            "cohort_emd": cohort.pop("cohort_emd"), "seconds": 0.0, "samples_per_second": 0.0,
        }  # fmt: skip
        cohort |= self.reference.divergence(state["params"], state["round"])
        row["test_accuracy_last10"] = accuracy.last_rounds([*self.rows, row])
        return row | cohort | self._measure_clients(state, exchanges) | self.algorithm.observe(state, self.engine)

    def _measure_clients(self, state: State, exchanges: list[Exchange]) -> dict[str, float]:
        """The new model on all clients' data; or what this round's participants received, on theirs (CADIS,
        figure 8b)."""
        if self.config.evaluate_clients == "none":
            return {}
        if self.config.evaluate_clients == "participants":
            scores = torch.cat([each.judge() for each in exchanges if each.judge])
        else:
            scores = accuracy.of_clients(lambda x: self.algorithm.predict(state, self.model, x), self.world)
        return {
            "client_accuracy_mean": float(scores.mean()),
            "client_accuracy_variance": float(scores.var(correction=0)),
        }

    def _exhibit(self, state: State) -> None:
        for name, content in self.algorithm.exhibits(state, self.engine).items():
            self.folder.write_exhibit(name, content)

    def _exhibit_confusion(self, state: State) -> None:
        """Per-class accuracy and the confusion matrix of the final model."""
        counts = accuracy.confusion(*self.algorithm.examined(state, self.engine))
        self.folder.write_exhibit("confusion", confusion.table(counts, self.class_names))
        self.folder.write_exhibit("confusion", confusion.picture(counts, self.class_names))
        self.folder.write_exhibit("class_accuracy", confusion.per_class(counts, self.class_names))

    def _record(self, row: dict[str, Any]) -> None:
        speed = round(self.examples / self.seconds, 1)
        self.rows.append({**row, "seconds": round(self.seconds, 3), "samples_per_second": speed})
        self._keeping(lambda: self.folder.write_metrics(self.rows))
        self.tracker.log(self.rows[-1])

    def _save(self, state: State) -> None:
        values = {
            "state": state, "rows": self.rows, "bytes": self.bytes, "examples": self.examples,
            "seconds": self.seconds, "partition_hash": self.partition_hash,
            "reference": self.reference.state, "device": self.world.device.type,
        }  # fmt: skip
        self._keeping(lambda: self.folder.checkpoint.save(values))

    def _keeping(self, write: Any) -> None:
        """Write, or say why that failed and go on: what was saved before still stands."""
        try:
            write()
        except OSError as error:
            self.display.say(f"fedexp: could not save ({error}); what was saved before still stands; going on")

    def _resume(self) -> State | None:
        values, refused = self.folder.checkpoint.load(self.world.device)
        for line in refused:
            print(f"fedexp: {line}")
        if values is None:
            return None
        if values["partition_hash"] != self.partition_hash:
            print("fedexp: the checkpoint was made with other data (the partition differs); starting afresh")
            return None
        begun, here = values["device"], self.world.device.type
        require(
            begun == here, "hardware.device", here,
            f"this run was begun on {begun}, and its state is that device's; go on there, or delete {self.folder.path}",
        )  # fmt: skip
        self.rows, self.bytes, self.examples = values["rows"], values["bytes"], values["examples"]
        self.seconds, self.reference.state = values["seconds"], values["reference"]
        self.folder.write_metrics(self.rows)
        print(f"fedexp: going on after round {values['state']['round']}")
        return values["state"]

    def _result(self, status: str) -> dict[str, Any]:
        return {
            "status": status,
            **summary(self.rows, self.config.targets),
            "at_chance": bool(self.rows) and self.rows[-1]["test_accuracy"] <= self.most_by_chance,
            "bytes_up": self.bytes[0], "bytes_down": self.bytes[1],
            "emd": self.emd,
            "seconds": round(self.seconds, 3),
            "seed": self.config.seed,
            "fingerprint": self.folder.fingerprint,
            "partition_hash": self.partition_hash,
            "versions": versions(),
            "commit": self.commit,
        }  # fmt: skip
