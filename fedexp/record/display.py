"""The terminal: a progress bar while a run lasts, plain lines where there is no terminal, a closing table."""

import time
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


def megabytes(count: float) -> str:
    """A readable number of bytes, in kB if it is below a megabyte."""
    return f"{count / 1e6:,.1f} MB" if count == 0 or count >= 1e6 else f"{count / 1e3:,.1f} kB"


class Display:
    """One run's progress. Without a terminal, a line every few seconds and one for the last round."""

    def __init__(self, rounds: int, done: int, seconds_between_lines: float = 10.0, stage: str = "") -> None:
        self.console = Console(highlight=False)
        self.rounds, self.done, self.first = rounds, done, done
        self.started = self.said = time.monotonic()
        self.between = seconds_between_lines
        self.latest, self.unit = "", f"{stage} round".strip()
        self.bar: Progress | None = None
        if self.console.is_terminal or (self.console.is_jupyter and find_spec("ipywidgets")):
            columns = (
                TextColumn(self.unit), MofNCompleteColumn(), BarColumn(bar_width=20), TextColumn("ETA"),
                TimeRemainingColumn(compact=True), TextColumn("{task.fields[latest]}"),
            )  # fmt: skip
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.task = self.bar.add_task("", total=rounds, completed=done, latest="")

    def __enter__(self) -> "Display":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, soft_wrap=True)

    def advance(self, row: dict[str, Any] | None) -> None:
        """Count a finished round. row: its row of metrics.csv, if it was evaluated."""
        self.done += 1
        if row is not None:
            loss = f"loss {row['test_loss']:.3f}  " if "test_loss" in row else ""
            self.latest = f"accuracy {row['test_accuracy']:.2%}  {loss}{megabytes(row['bytes_total'])}"
        if self.bar:
            self.bar.update(self.task, completed=self.done, latest=self.latest)
            return
        now = time.monotonic()
        if now - self.said >= self.between or self.done == self.rounds:
            self.said = now
            pace = (now - self.started) / (self.done - self.first)
            left = pace * (self.rounds - self.done)
            self.say(f"{self.unit} {self.done}/{self.rounds}  {self.latest}  ETA {left:.0f} s")

    def summary(self, title: str, result: dict[str, Any]) -> None:
        """Print the closing table."""
        table = Table(show_header=False)
        of_clients = [name for name in result if name.startswith(("client_accuracy_mean", "client_accuracy_worst10"))]
        for name in ("status", "rounds", "final_accuracy", "best_accuracy", "best_round", *of_clients, "rounds_to",
                     "bytes_up", "bytes_down", "emd", "seconds", "samples_per_second"):  # fmt: skip
            value = result.get(name)
            if value is None or value == {}:
                continue
            if name == "rounds_to":
                value = ", ".join(f"{100 * float(to):g}%: {after or 'not reached'}" for to, after in value.items())
            elif "accuracy" in name:
                value = f"{value:.2%}"
            elif name.startswith("bytes"):
                value = megabytes(value)
            elif isinstance(value, float):
                value = f"{value:,.3f}" if value < 100 else f"{value:,.0f}"
            table.add_row(name.replace("_", " "), str(value))
        self.say(title)  # not the table's title, which would break a long name
        self.console.print(table)
