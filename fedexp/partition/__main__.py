"""The partition of a composed run as a table, without training.

python -m fedexp.partition partition=dir0.1 clients=20
"""

import sys

from rich.console import Console
from rich.table import Table

from fedexp.build import build_dataset, build_world
from fedexp.main import answer_help, composed, one_line_errors
from fedexp.measure.skew import emd, mean_emd
from fedexp.record import partition


def main(words: list[str]) -> None:
    """Print clients x classes, each client's size and EMD. Exit code 2 for settings that cannot work."""
    answer_help(words, __doc__)
    with one_line_errors(words):
        config = composed(words)
        dataset = build_dataset(config)
        world = build_world(config, dataset)
    counts = partition.table(world.label_counts, dataset.class_names)
    title = f"{config.partition.name} of {config.dataset.name}: {world.clients} clients, mean EMD "
    table = Table("client", *counts.columns, "examples", "EMD", title=f"{title}{mean_emd(world.label_counts):.3f}")
    for (client, row), distance in zip(counts.iterrows(), emd(world.label_counts)):
        table.add_row(str(client), *(str(count or "") for count in row), str(row.sum()), f"{distance:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
