"""The command `fedexp`, and `python -m fedexp`."""

import signal
import sys


def run() -> None:
    """Carry out the command line. Until there is something to save, Ctrl-C ends the program at once: during imports it
    would otherwise print a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fedexp.main import main

    sys.argv[0] = "fedexp"  # the installed command, for which shells can complete words
    main()


if __name__ == "__main__":
    run()
