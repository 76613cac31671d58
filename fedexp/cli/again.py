"""Continue or repeat a saved run from its config.yaml, with other values where they are given.

    python -m fedexp again outputs/RUN                 # finds it finished, or resumes it where it was saved
    python -m fedexp again outputs/RUN rounds=100      # more rounds of the same run
    python -m fedexp again outputs/RUN seed=1          # another run, the same except for this key

Keys are KEY=VALUE, +KEY=VALUE, ~KEY as in the main program. Of the groups only hardware and tracking can be chosen
anew: hardware=cpu, tracking=none. For the others the file holds only the chosen option's keys. Runs go to the folder
that contains RUN, unless output_root says otherwise.
"""

from pathlib import Path

from fedexp.config.checks import check
from fedexp.config.saved import saved
from fedexp.errors import require
from fedexp.experiment import run
from fedexp.record.terminal import log_to_terminal


def main(words: list[str]) -> None:
    log_to_terminal()
    require(bool(words), "", "again", "name a run's folder: python -m fedexp again outputs/RUN")
    right = "is not a run's folder; again carries out one run, whose folder is the first word"
    require(not words[0].startswith("-"), "", words[0], right)
    for word in words[1:]:
        require("=" in word or not Path(word).is_dir(), "", word, "is a second folder; again carries out one run")
    config = saved(Path(words[0]), words[1:])
    check(config)
    run(config)
