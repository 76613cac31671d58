"""The partition of a composed run as a table, without training.

python -m fedexp.partition partition=dir0.1 clients=20
"""

import sys

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from fedexp.build import build_dataset, build_world
from fedexp.errors import ConfigError
from fedexp.explain import explain
from fedexp.main import CONF
from fedexp.measure.skew import emd, mean_emd
from fedexp.record import partition
from fedexp.settings import check


def main(words: list[str]) -> int:
    """Print clients x classes, each client's size and EMD; 2 for settings that cannot work."""
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", overrides=words)
        check(config)
        dataset = build_dataset(config)
        world = build_world(config, dataset)
    except ConfigError as error:
        print(f"fedexp: {error}", file=sys.stderr)
        return 2
    except (HydraException, OmegaConfBaseException) as error:
        print(f"fedexp: {explain(error, words, CONF)}", file=sys.stderr)
        return 2
    counts = partition.table(world.label_counts, dataset.class_names)
    title = f"{config.partition.name} of {config.dataset.name}: {world.clients} clients, mean EMD "
    table = Table("client", *counts.columns, "examples", "EMD", title=f"{title}{mean_emd(world.label_counts):.3f}")
    for (client, row), distance in zip(counts.iterrows(), emd(world.label_counts)):
        table.add_row(str(client), *(str(count or "") for count in row), str(row.sum()), f"{distance:.3f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
