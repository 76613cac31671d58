"""The partition of a composed run as a table, without training.

python -m fedexp partition partition=dir0.1 clients=20

--to FILE.csv also writes the clients' training examples, for other programs: a row for each, with the client, the
example's place in the data set, from 0, and whether it is held out of training.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedexp import files
from fedexp.config.compose import composed
from fedexp.config.words import parsed
from fedexp.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from fedexp.world import World


def main(words: list[str]) -> None:
    """Print clients x classes, and each client's size and EMD. In a terminal too narrow for one column per class, the
    classes of each client are listed instead. Raises ConfigError if --to names a file that cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m fedexp partition", add_help=False)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--to", type=Path, metavar="FILE.csv")
    parser.add_argument("-m", "--multirun", action="store_true")  # which `composed` refuses
    chosen = parsed(parser, words)
    config = composed([*chosen.words, *(["-m"] if chosen.multirun else [])])
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
    if chosen.to is not None:
        try:
            files.write_text(chosen.to, _examples(world).to_csv(index=False))
        except OSError as error:
            raise ConfigError("--to", str(chosen.to), f"cannot be written ({error.strerror})") from error
        console.print(str(chosen.to), soft_wrap=True, highlight=False, markup=False)


def _examples(world: "World") -> "pd.DataFrame":
    """A row for each client's example."""
    import pandas as pd
    import torch

    clients = torch.arange(world.clients)
    parts = [(world.rows, world.sizes, 0), (world.held, world.held_sizes, 1)]
    found = [
        pd.DataFrame(
            {"client": clients.repeat_interleave(sizes).numpy(), "example": rows.cpu().numpy(), "held_out": out}
        )
        for rows, sizes, out in parts
        if rows is not None and sizes is not None
    ]
    return pd.concat(found).sort_values(["client", "held_out", "example"])


def _width(counts: "pd.DataFrame") -> int:
    """The table's width in characters with one column per class."""
    return 24 + sum(2 + max(cell_len(name), len(str(counts[name].max()))) for name in counts)


def _held(row: "pd.Series") -> str:
    """The classes that a client holds, the most frequent first."""
    held = row[row > 0].sort_values(ascending=False, kind="stable")
    return " ".join(f"{name}:{count}" for name, count in held.items())
