"""The loop of a run: resume, stage, round, evaluate, record."""

import logging
import signal
import time
from contextlib import ExitStack
from typing import Any

from omegaconf import DictConfig

from fedexp.algorithms.fedavg import FedAvg, Stage
from fedexp.building import (
    build_context,
    build_dataset,
    build_measures,
    build_reference,
    build_stages,
    build_tracker,
    warn_of_hardware,
)
from fedexp.building.own import reads_rounds
from fedexp.config import launch
from fedexp.config.schema import section
from fedexp.data import Dataset
from fedexp.engine import Context, State, ranks, returned
from fedexp.engine.torch_settings import of_a_fresh_process
from fedexp.errors import Interrupted, ProcessLost, require
from fedexp.global_model import check_final
from fedexp.measure import accuracy
from fedexp.measure.evaluation import Evaluation
from fedexp.randomness import key, seeded
from fedexp.record.display import Display
from fedexp.record.folder import RunFolder
from fedexp.record.history import Row
from fedexp.record.interrupt import Stop
from fedexp.record.recorder import Recorder
from fedexp.record.status import Status
from fedexp.record.tracker import Tracker
from fedexp.round import begin, one_round

log = logging.getLogger(__name__)


def run(config: DictConfig) -> dict[str, Any]:
    """Carry out one run, or find that it has finished before; returns its result.json. Raises Interrupted on a signal,
    with what went wrong as its cause if the run failed all the same.

    Called again with the same config, it finds a finished run and resumes an unfinished one from where it was saved.
    With more rounds it continues the run; with fewer it finds the result after exactly that many. Where torchrun has
    started several processes, the first one alone writes the run's folder.
    """
    folder, device = RunFolder(config), section(config, "hardware").torch_device
    with of_a_fresh_process(), ranks.joined(device), ExitStack() as held, Stop() as stop:
        ranks.agreed(lambda: held.enter_context(folder) if launch.is_first() else None)
        found = ranks.from_first(lambda: folder.finished(config.rounds), device)
        try:
            result = found or _carried_out(config, folder, stop)
        except SystemExit as error:  # it would end a sweep, too
            raise RuntimeError(f"code of this run ended the program (SystemExit: {error.code})") from error
        except Exception as error:
            if stop() and not isinstance(error, Interrupted):  # a sweep must not begin its next run
                raise Interrupted(stop.signal) from error
            raise
        if launch.is_first():
            display = Display(config.rounds, config.rounds)
            display.summary(_found(folder, result) if found else folder.path.name, result)
            display.say(str(folder.path))
        if stop():  # a signal in the last round: this run is done, but a sweep must not begin its next one
            raise Interrupted(stop.signal)
        return result


def _carried_out(config: DictConfig, folder: RunFolder, stop: Stop) -> dict[str, Any]:
    dataset = ranks.first_here(lambda: build_dataset(config))
    return ranks.agreed(lambda: Experiment(config, dataset, folder, stop)).carry_out()


def _found(folder: RunFolder, result: dict[str, Any]) -> str:
    """The message about a run that has finished before."""
    rounds, longest = result["rounds"], folder.result()["rounds"]
    first = f", with {longest} rounds, of which this is the result of the first {rounds}" if rounds < longest else ""
    return f"this run has already finished{first}; delete its folder to run it again"


class Experiment:
    """One run in progress: all that is built for it, and the context of the current stage."""

    def __init__(self, config: DictConfig, dataset: Dataset, folder: RunFolder, stop: Stop) -> None:
        self.config, self.stop = config, stop
        self.ctx: Context | None = None
        shared = build_context(config, dataset)
        warn_of_hardware(shared)
        self.stages = build_stages(config, shared)
        check_rounds(self.stages, config.rounds)
        last = self.stages[-1].context
        self.reference = build_reference(config, last, stop)
        evaluate, measures = section(config, "evaluate"), build_measures(config)
        self.evaluation = Evaluation(evaluate, measures, self.reference, self.stages, shared.world, config.rounds)
        tracker = build_tracker(config) if launch.is_first() else Tracker()
        self.recorder = Recorder(config, folder, tracker, self.reference, last.world, dataset.class_names)

    def carry_out(self) -> dict[str, Any]:
        """Run all stages; result.json is written at the end, however the run ends."""
        state = self.recorder.resume(self.evaluation.is_due)
        if state is not None:
            self._check_position(state)
        self.recorder.begin(state)
        status, added = Status.FAILED, {}
        try:
            state, ended = self._all_stages(state)
            with seeded(key(self.config.seed, "last files")):
                added = self._finish(state)
            status = ended  # only now: a finished run has all of its files
        except ProcessLost:
            status = Status.INTERRUPTED
            raise
        except Interrupted:
            status = Status.INTERRUPTED
            raise Interrupted(self.stop.signal or signal.SIGTERM) from None  # SIGTERM: another process got the signal
        finally:
            self._close()
            self.reference.close()
            result = self.recorder.end(status, added)
        return result

    def _all_stages(self, state: State | None) -> tuple[State, Status]:
        """The State at the end, and finished or diverged."""
        first = state["stage"] if state else 0
        for number, stage in enumerate(self.stages[first:], first):
            with seeded(key(self.config.seed, "stage", number)):
                state = self._enter(number, state)
            state, ended = self._rounds(stage, state)
            if ended == Status.DIVERGED:
                break
        return state, ended

    def _enter(self, number: int, state: State | None) -> State:
        """The State from which a stage's rounds go on: the one that was saved within it; if there is none, the one
        before its first round, made from the previous stage's final State."""
        stage = self.stages[number]
        self._open(stage.context)
        if state and state["stage"] == number:
            self._open(stage.inside(state, self.ctx))
            return state
        before = state or {"params": self.ctx.model.params()}
        fresh = returned.first_state(stage.begin(stage.algorithm, before, self.ctx))
        self._open(stage.inside(fresh, self.ctx))
        count = state["round"] if state and self.stages[number - 1].counted else 0
        if stage.counted and count == 0:
            self.reference.begin(fresh["params"])
        place = {"round": count, "stage": number, "clock": state["clock"] if state else 0.0}
        state = begin(stage.algorithm, fresh, self.ctx, place)
        self.recorder.save_if_due(state)  # entering a stage can take long and should not be repeated
        return state

    def _open(self, ctx: Context) -> None:
        """Make `ctx` the one to train in, with an engine of its own."""
        if ctx is not self.ctx:
            self._close()
            self.ctx = ctx.ready(self.stop)

    def _close(self) -> None:
        if self.ctx is not None:
            self.ctx.engine.close()

    def _rounds(self, stage: Stage, state: State) -> tuple[State, Status]:
        """A stage's rounds: the State after them, and finished or diverged."""
        last = last_round(self.stages, state["stage"], self.config.rounds)
        history = self.recorder.history
        if stage.counted and history.rows and history.rows[-1]["round"] == state["round"] and history.diverged():
            return state, Status.DIVERGED  # it had diverged before it was killed: only result.json is missing
        with Display(last, state["round"], stage=stage.name if len(self.stages) > 1 else "") as display:
            while state["round"] < last and not stage.done(state, self.ctx):
                state, row = self._round(stage, state)
                display.advance(row)
                if row is not None and self.recorder.history.diverged():
                    return state, Status.DIVERGED
                if state["round"] < last:
                    self.recorder.save_if_due(state)
        return state, Status.FINISHED

    def _round(self, stage: Stage, state: State) -> tuple[State, Row | None]:
        """The State after one more round, and its row of metrics.csv if the round was evaluated."""
        try:
            if stage.counted:
                self.reference.follow(state["round"] + 1)
            began = time.monotonic()
            with seeded(key(self.config.seed, "server", state["stage"], state["round"])):
                done = one_round(stage.algorithm, state, self.ctx)
                due = stage.counted and self.evaluation.is_due(done.number)
                row, tables = self.evaluation.row(stage, done) if due else (None, {})
        except Interrupted:
            self.recorder.save(state)
            raise
        if not stage.counted:
            return done.after, None
        seconds = time.monotonic() - began
        self.recorder.history.count(done.bytes_up, done.bytes_down, len(done.ids), done.examples, seconds)
        if row is not None:
            rows = self.recorder.history.rows
            if not rows or rows[-1].get("stage", stage.name) != stage.name:  # each stage's first row
                check_final(stage.algorithm, done.after, self.ctx)
            row = self.recorder.add(row, tables)
        if self.config.artifacts_every and done.number % self.config.artifacts_every == 0:
            self.recorder.saving.artifacts(_artifacts(stage.algorithm, done.after, self.ctx))
        return done.after, row

    def _finish(self, state: State) -> dict[str, Any]:
        """Write the run's last files; returns what its algorithm and its parts add to result.json."""
        algorithm, ctx = self.stages[state["stage"]].algorithm, self.ctx
        answers = accuracy.confusion(lambda x: algorithm.predict(state, ctx.model, x), ctx.world)
        self.recorder.save(state)  # more rounds may be asked for later
        final = returned.tensors("final", algorithm.final(state))
        self.recorder.finish(final, answers, _artifacts(algorithm, state, ctx))
        private = algorithm.privacy.summary(algorithm.selection.sampling)
        summary = returned.mapping("summary", algorithm.summary(state, ctx))
        return {"convolution_tiles": state["tiles"], **private, **summary}

    def _check_position(self, state: State) -> None:
        """Raise ConfigError unless the saved run can end after `rounds` rounds: it must not be beyond that round, and
        if it was saved exactly there, that round must have been evaluated. Warn where a user's code reads a number of
        rounds that has changed since."""
        number, rounds, rows = state["round"], self.config.rounds, self.recorder.history.rows
        kind, before = type(self.stages[state["stage"]].algorithm), self.recorder.asked
        if before is not None and before != rounds and reads_rounds(kind):
            log.warning(
                "the code of %s reads the number of rounds, which was %d when this run was saved and is now %d: the "
                "rounds carried out before stay as they are; to have all of them as with %d, delete %s", kind.__name__,
                before, rounds, rounds, self.recorder.folder.path,
            )  # fmt: skip
        ready = number == rounds and rows and rows[-1]["round"] == rounds
        require(
            number < rounds or ready or not self.stages[state["stage"]].counted, "rounds", rounds,
            f"this run was interrupted after round {number}; ask for more, or delete {self.recorder.folder.path}",
        )  # fmt: skip


def _artifacts(algorithm: FedAvg, state: State, ctx: Context) -> dict[str, Any]:
    return returned.mapping("artifacts", algorithm.artifacts(state, ctx))


def check_rounds(stages: list[Stage], rounds: int) -> None:
    """Raise ConfigError unless the last stage, the aim of the run, begins within `rounds` communication rounds."""
    before = sum(stage.rounds for stage in stages[:-1] if stage.counted)
    require(
        rounds > before, "rounds", rounds, f"must be above {before}, after which the stage {stages[-1].name} begins"
    )  # fmt: skip


def last_round(stages: list[Stage], number: int, rounds: int) -> int:
    """The number of the last round of stage `number` in a run of `rounds` communication rounds."""
    stage = stages[number]
    if stage.rounds is None:
        return rounds
    if not stage.counted:
        return stage.rounds
    return min(rounds, stage.rounds + sum(each.rounds for each in stages[:number] if each.counted))
