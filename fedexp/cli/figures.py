"""The figures of Zhao et al. (2018), from the folders of finished runs.

    python -m fedexp figures outputs/                      those for which there are runs
    python -m fedexp figures outputs/ synchronisation=5    divergence after round 5 instead of round 1

accuracy_over_rounds      figures 1 and 8: SGD, and FedAvg with partition=iid, shards2 and shards1
divergence_by_layer       figure 2: the same partitions, in runs with reference=centralized
divergence_against_emd    figure 4: partition=emd, in runs with reference=centralized
accuracy_against_emd      figure 5a: partition=emd with several targets
boxes_at_emd              figure 5b: partition=emd with target 1.44 and several distributions
accuracy_against_beta     figure 7a: algorithm=data_sharing that trains from scratch with all shared examples
accuracy_against_alpha    figure 7b: algorithm=data_sharing that starts from the warm-up model

--to FOLDER    the folder for the files, each as png and pdf; by default reports/zhao2018 beside the runs
"""

import argparse
import os
from pathlib import Path

from fedexp.config.words import parsed
from fedexp.errors import ConfigError, require
from fedexp.record.terminal import log_to_terminal
from fedexp.report.writers import beside, save
from fedexp.report.zhao import figures, read_runs


def main(words: list[str]) -> None:
    """Draw the figures for which there are runs, and name the others. Raises ConfigError where there are no runs."""
    log_to_terminal()
    parser = argparse.ArgumentParser(prog="python -m fedexp figures", add_help=False)
    parser.add_argument("words", nargs="+", metavar="FOLDER or synchronisation=ROUND")
    parser.add_argument("--to", type=Path, metavar="FOLDER")
    chosen = parsed(parser, words)
    folders = [Path(word) for word in chosen.words if os.path.isdir(word)]
    synchronisation = 1
    for word in (word for word in chosen.words if not os.path.isdir(word)):
        key, given, value = word.partition("=")
        require(bool(given) and key == "synchronisation", "", word, "is neither a folder nor synchronisation=ROUND")
        require(value.isdecimal() and int(value) > 0, key, value, "must be the number of a round, from 1")
        synchronisation = int(value)
    require(bool(folders), "", " ".join(chosen.words), "name a folder that holds runs")
    runs = read_runs(folders)
    require(not runs.empty, "", " ".join(map(str, folders)), "no finished runs there")
    to = chosen.to or beside(folders[0]) / "zhao2018"
    for name, draw in figures(synchronisation).items():
        figure = draw(runs)
        if figure is None:
            print(f"{name}: no runs for it")
            continue
        try:
            to.mkdir(parents=True, exist_ok=True)
            print(*save(figure, to, name), sep="\n")
        except OSError as error:
            raise ConfigError("to", to, f"cannot be written to ({error})") from error
