"""A run again from the config.yaml that it left, with other values where they are given.

    python -m fedexp again outputs/RUN                 # finds it finished, or goes on where it was saved
    python -m fedexp again outputs/RUN rounds=100      # more rounds of the same run
    python -m fedexp again outputs/RUN seed=1          # another run, but for this key the same

Keys are KEY=VALUE, +KEY=VALUE, ~KEY as in the main program; options of groups cannot be chosen anew, since the file
holds what they stood for. Runs go to the folder that RUN lies in, unless output_root says otherwise.
"""

from pathlib import Path

from fedexp.config.saved import saved
from fedexp.errors import require
from fedexp.experiment import run
from fedexp.record.terminal import log_to_terminal


def main(words: list[str]) -> None:
    log_to_terminal()
    require(bool(words), "words", "", "must name a run's folder: python -m fedexp again outputs/RUN")
    run(saved(Path(words[0]), words[1:]))
