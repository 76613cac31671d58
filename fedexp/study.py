"""How much encoders know of labels and of inputs (FedConcat, appendix C: tables 6 and 7, figures 5 and 6).

    python -m fedexp.study                                   # Fashion-MNIST, #C = 2, seed 1, 50 local epochs
    python -m fedexp.study dataset=cifar10 local.epochs=20   # any composed config

The first two clients each train the model by themselves. Their encoders are then frozen, and on top of one of
them, of their average or of both side by side a linear classifier and a decoder are trained with the same local
settings: the smaller their losses on those data, the more the features say about labels and inputs. Left in the
folder of the config's run: information.csv; information_features.png (figure 5), the features of each encoder in two
dimensions; fedavg_features.png (figure 6), those of FedAvg's encoder after a few rounds of the two clients.

The decoder is not described in the paper; here it is one hidden layer of 256 and a sigmoid, its loss the mean
squared error over pixels in [0, 1].
"""

import sys
from dataclasses import dataclass, replace

import pandas as pd
import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from fedexp import pictures, tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedconcat import concatenate, encoders
from fedexp.build import build_dataset, build_model, build_world
from fedexp.data import Transform
from fedexp.engine import Batch, Engine, Sent
from fedexp.engine.client import OneClient
from fedexp.errors import require
from fedexp.main import answer_help, composed, one_line_errors
from fedexp.models import Classifier, Model
from fedexp.randomness import generator, key
from fedexp.record.folder import RunFolder
from fedexp.tree import Params, Stack
from fedexp.world import World

SETTING = {"paper": "fedconcat", "dataset": "fmnist", "partition": "classes2", "seed": "1", "local.epochs": "50"}
HIDDEN = 256  # width of the decoder
SHOWN = 500  # examples in a picture
FEDAVG_EPOCHS, FEDAVG_ROUNDS = 10, (1, 3, 5)  # figure 6; no more epochs than `local.epochs`


@dataclass
class Reconstruction(FedAvg):
    """Trains a decoder: `batch.y` holds the pixels [B, p] that features `batch.x` came from."""

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        return batch.mean(((model(params, batch.x).sigmoid() - batch.y) ** 2).mean(1))


def study(config: DictConfig) -> pd.DataFrame:
    """Tables 6 and 7: a row for each encoder and the data that its classifier and decoder are trained on."""
    require(config.clients >= 2, "clients", config.clients, "must be at least 2: the first two are studied")
    shared = build_world(config, build_dataset(config))
    world = replace(shared, rows=torch.cat([shared.of(0), shared.of(1)]), sizes=shared.sizes[:2])
    model = build_model(config, world)
    hardware, local = (OmegaConf.to_object(config[name]) for name in ("hardware", "local"))
    engine = Engine(model, world, local, hardware, config.seed)
    ids = torch.tensor([0, 1])
    sent = Sent(tree.spread(model.params(), 2))
    trained = engine.train(FedAvg(2, local), {"round": 0}, ids, sent)
    both = encoders(trained.params)
    average = encoders(tree.mean(trained.params, trained.sizes))
    first, second, averaged = tree.take(both, slice(0, 1)), tree.take(both, slice(1, 2)), tree.spread(average, 1)
    cases = [
        (6, "client1", "own_encoder", first, [0]), (6, "client1", "exchanged_encoder", second, [0]),
        (6, "client2", "own_encoder", second, [1]), (6, "client2", "exchanged_encoder", first, [1]),
        (7, "both", "encoder_client1", first, [0, 1]), (7, "both", "encoder_client2", second, [0, 1]),
        (7, "both", "encoder_averaged", averaged, [0, 1]), (7, "both", "encoder_concatenated", both, [0, 1]),
    ]  # fmt: skip
    rows = [(number, data, name, *losses(engine, frozen, members)) for number, data, name, frozen, members in cases]
    table = pd.DataFrame(rows, columns=["table", "data", "algorithm", "classification_loss", "reconstruction_loss"])
    with RunFolder(config) as folder:
        folder.write_config()
        folder.write_exhibit("information", table.set_index("table"))
        print(table.to_string(index=False, float_format="%.4f"), folder.path, sep="\n", flush=True)
        folder.write_exhibit("information_features", _picture(engine, {case[2]: case[3] for case in cases[4:]}))
        folder.write_exhibit("fedavg_features", _picture(engine, fedavg_encoders(engine)))
    engine.close()
    return table


def losses(engine: Engine, frozen: Stack, members: list[int]) -> tuple[float, float]:
    """Cross-entropy of a linear classifier and squared error of a decoder over frozen encoders [k, ...], each
    trained and measured on the examples of `members`."""
    world = engine.world
    rows = torch.cat([world.of(client) for client in members])
    features = _features(engine, frozen, rows)
    pixels = world.x[rows].flatten(1).to(world.dtype) / (255 if world.x.dtype == torch.uint8 else 1)
    width, classes, inputs = features.shape[1], world.classes, pixels.shape[1]
    decoder = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU()), nn.Linear(HIDDEN, inputs)
    classifier = nn.Identity(), nn.Linear(width, classes)
    probes = ((FedAvg, classifier, world.y[rows]), (Reconstruction, decoder, pixels))
    found = []
    for rule, parts, targets in probes:
        over = replace(
            world, x=features, y=targets, rows=torch.arange(len(rows), device=world.device),
            sizes=torch.tensor([len(rows)]), transform=Transform(),
        )  # fmt: skip
        found.append(_final_loss(engine, rule(1, engine.local), Classifier(*parts), over))
    return found[0], found[1]


def _final_loss(engine: Engine, rule: FedAvg, net: nn.Module, over: World) -> float:
    """Train `net` as the one client of world `over`; its mean loss over all examples afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(engine.seed, "probe"))
        for part in net.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()
    model = Model(net.to(over.device, over.dtype))
    sibling = engine.sibling(model, over, engine.local)
    sent = Sent(tree.spread(model.params(), 1))
    params = tree.take(sibling.train(rule, {"round": 0}, torch.tensor([0]), sent).params, 0)
    ones = torch.ones(len(over.y), dtype=over.dtype, device=over.device)
    everything = Batch(over.x, over.y, ones, key=torch.tensor(0, device=over.device))  # no probe draws noise
    with torch.no_grad():
        return float(rule.loss(model, params, everything, OneClient(params, {}, {})))


def _features(engine: Engine, frozen: Stack, rows: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([concatenate(engine.model, frozen, engine.world.prepare(part)) for part in rows.split(1000)])


def fedavg_encoders(engine: Engine) -> dict[str, Stack]:
    """FedAvg's encoder [1, ...] after each of FEDAVG_ROUNDS, both clients taking part in every round."""
    local = replace(engine.local, epochs=min(FEDAVG_EPOCHS, engine.local.epochs))
    sibling, rule = engine.sibling(engine.model, engine.world, local), FedAvg(2, local)
    state, found = rule.init(engine.world, engine.model, engine.model.params()), {}
    while state["round"] < max(FEDAVG_ROUNDS):
        state = rule.round(state, engine.world, sibling, generator(engine.seed, "round", state["round"]))
        if state["round"] in FEDAVG_ROUNDS:
            found[f"FedAvg, round {state['round']}"] = tree.spread(encoders(state["params"]), 1)
    return found


def _picture(engine: Engine, shown: dict[str, Stack]) -> Figure:
    """t-SNE of each encoder's features of examples of both clients, evenly picked."""
    world = engine.world
    rows = world.rows[torch.linspace(0, len(world.rows) - 1, min(SHOWN, len(world.rows))).long()]
    named = {name: _features(engine, frozen, rows).cpu() for name, frozen in shown.items()}
    return pictures.features(named, world.y[rows].cpu(), engine.seed)


def main(words: list[str]) -> None:
    """Compose, check, study. Exit code 2 for a setting that cannot work."""
    answer_help(words, __doc__)
    named = {word.lstrip("+~").partition("=")[0] for word in words}
    overrides = [*(f"{name}={value}" for name, value in SETTING.items() if name not in named), *words]
    with one_line_errors(words):
        study(composed(overrides))


if __name__ == "__main__":
    main(sys.argv[1:])
