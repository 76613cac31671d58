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

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGTERM, signal.SIGINT]
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                numbers.append(signal.SIGHUP)
            self._before: dict[int, Any] = {number: signal.signal(number, self._ask) for number in numbers}
        else:
            self._before = {}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])
        self.signal = number
