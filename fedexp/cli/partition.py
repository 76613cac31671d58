"""The partition of a composed run as a table, without training.

python -m fedexp partition partition=dir0.1 clients=20
"""

from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedexp.config.compose import composed

if TYPE_CHECKING:
    import pandas as pd


def main(words: list[str]) -> None:
    """Print clients x classes, and each client's size and EMD. In a terminal too narrow for one column per class, the
    classes of each client are listed instead."""
    config = composed(words)
    from fedexp.building import build_dataset, build_world  # only now: a misspelt key is refused without PyTorch
    from fedexp.measure.skew import emd, mean_emd
    from fedexp.record import partition

    dataset = build_dataset(config)
    world = build_world(config, dataset)
    counts = partition.table(world.label_counts, dataset.class_names)
    columns = counts.set_axis([name.removeprefix("class_") for name in counts.columns], axis=1)
    console = Console()
    fits = _width(columns) <= console.width
    header = columns.columns if fits else ["examples of class:count"]
    names = [str(config[group].get("name", "own")) for group in ("partition", "dataset")]
    title = f"{' of '.join(names)}: {world.clients} clients, mean EMD "
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"{escape(title)}{mean_emd(world.label_counts):.3f}")
    table.add_column("client", justify="right", no_wrap=True)
    for name in header:
        table.add_column(escape(name), justify="right" if fits else "left", no_wrap=fits, overflow="fold")
    for name in ("all", "EMD"):
        table.add_column(name, justify="right", no_wrap=True)
    for (client, row), distance in zip(columns.iterrows(), emd(world.label_counts)):
        held = [str(count or "") for count in row] if fits else [escape(_held(row))]
        table.add_row(str(client), *held, str(row.sum()), f"{distance:.3f}")
    console.print(table)


def _width(counts: "pd.DataFrame") -> int:
    """The table's width in characters with one column per class."""
    return 24 + sum(2 + max(cell_len(name), len(str(counts[name].max()))) for name in counts)


def _held(row: "pd.Series") -> str:
    """The classes that a client holds, the most frequent first."""
    held = row[row > 0].sort_values(ascending=False, kind="stable")
    return " ".join(f"{name}:{count}" for name, count in held.items())
