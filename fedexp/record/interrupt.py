"""Signals: a run that is asked to end (SIGTERM, Ctrl-C, a terminal that is gone) saves its state first."""

import signal
import threading
from types import FrameType
from typing import Any


class Stop:
    """Within the context, calling this object tells whether the run was asked to end, and `signal` is the signal.

    A second Ctrl-C acts at once, and a SIGHUP that was ignored before (nohup) stays ignored.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])
        self.signal = number
