"""Messages while fedexp works: log records as lines on standard output, which may be lost without ending a run."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class Terminal(logging.Handler):
    """Prints to the current standard output, which a progress bar replaces while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), flush=True)


def log_to_terminal() -> None:
    """Log as conf/hydra/job_logging/fedexp.yaml does, in programs that Hydra does not start."""
    logger = logging.getLogger("fedexp")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = Terminal()
        handler.setFormatter(logging.Formatter("fedexp: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


class Lasting:
    """A stream whose loss does not end the program: once it cannot be written to (a closed pipe, a full disk, a
    terminal that is gone, a stream that the program has closed), further output is discarded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Callable[..., Any], *given: str) -> None:
        if getattr(self._stream, "closed", False):
            return
        try:
            act(*given)
        except OSError:
            with suppress(OSError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())  # for buffered output, too


@contextmanager
def lasting_output() -> Iterator[None]:
    """Within the context standard output and error are Lasting. Of runs in several threads, the first makes them so."""
    own: dict[str, tuple[TextIO, Lasting]] = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)  # None where it is closed
        if stream is not None and not isinstance(stream, Lasting):
            own[name] = stream, Lasting(stream)
            setattr(sys, name, own[name][1])
    try:
        yield
    finally:
        for name, (stream, lasting) in own.items():
            lasting.flush()
            setattr(sys, name, stream)
