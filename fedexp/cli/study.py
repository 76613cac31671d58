"""How much encoders know about labels and inputs (FedConcat, appendix C: tables 6 and 7, figures 5 and 6).

    python -m fedexp study                                   # Fashion-MNIST, #C = 2, seed 1, 50 local epochs
    python -m fedexp study dataset=cifar10 local.epochs=20   # any composed config

The first two clients each train the model by themselves. Their encoders are then frozen, and a linear classifier and a
decoder are trained, with the same local settings, on top of one of them, of their average, or of both side by side: the
smaller their losses on the same data, the more the features tell about labels and inputs. Files written to the folder
of the config's run: information.csv, which names the commit; information_features.png (figure 5), the features of each
encoder in two dimensions; fedavg_features.png (figure 6), those of FedAvg's encoder after a few rounds of the two
clients. `python -m fedexp report` puts the losses beside the published ones.

The decoder is not described in the paper; here it is one hidden layer of 256 and a sigmoid, its loss the mean
squared error over pixels in [0, 1].
"""

from dataclasses import dataclass, replace

import pandas as pd
import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig
from torch import Tensor, nn

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedconcat import concatenate, encoders
from fedexp.building import build_context, build_dataset
from fedexp.config.compose import composed
from fedexp.config.constructors import PARTS
from fedexp.data import Transform
from fedexp.engine import Batch, Client, Context
from fedexp.errors import require
from fedexp.models import Classifier, Model
from fedexp.randomness import key, seeded
from fedexp.record import pictures
from fedexp.record.folder import RunFolder
from fedexp.record.result import commit
from fedexp.round import begin, one_round
from fedexp.tree import Params, Stack
from fedexp.world import World

SETTING = {"paper": "fedconcat", "dataset": "fmnist", "partition": "classes2", "seed": "1", "local.epochs": "50"}
HIDDEN = 256  # width of the decoder
SHOWN = 500  # examples in a picture
FEDAVG_EPOCHS, FEDAVG_ROUNDS = 10, (1, 3, 5)  # figure 6; at most `local.epochs` epochs


@dataclass(frozen=True, kw_only=True)
class Reconstruction(FedAvg):
    """Trains a decoder: `batch.y` holds the pixels [B, p] of the images whose features are `batch.x`."""

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        return batch.mean(((model(params, batch.x).sigmoid() - batch.y) ** 2).mean(1))


def study(config: DictConfig) -> pd.DataFrame:
    """Tables 6 and 7: a row for each encoder and each set of data on which its classifier and decoder are trained."""
    require(config.clients >= 2, "clients", config.clients, "must be at least 2: the first two are studied")
    for group, own in {"algorithm": f"{FedAvg.__module__}.FedAvg", **PARTS}.items():
        node = config[group]
        require(node["_target_"] == own, group, node.get("name", "own"), "has no part in the study; leave it out")
    every = build_context(config, build_dataset(config))
    two = torch.cat([every.world.of(0), every.world.of(1)])
    ctx = replace(every, world=replace(every.world, rows=two, sizes=every.sizes[:2]), cohort=2).ready()
    trained = _train(FedAvg(), ctx, ctx.model.params())
    both = encoders(trained)
    average = encoders(tree.mean(trained, ctx.sizes))
    first, second, averaged = tree.take(both, slice(0, 1)), tree.take(both, slice(1, 2)), tree.spread(average, 1)
    cases = [
        (6, "client1", "own_encoder", first, [0]), (6, "client1", "exchanged_encoder", second, [0]),
        (6, "client2", "own_encoder", second, [1]), (6, "client2", "exchanged_encoder", first, [1]),
        (7, "both", "encoder_client1", first, [0, 1]), (7, "both", "encoder_client2", second, [0, 1]),
        (7, "both", "encoder_averaged", averaged, [0, 1]), (7, "both", "encoder_concatenated", both, [0, 1]),
    ]  # fmt: skip
    rows = [(number, data, name, *losses(ctx, frozen, members)) for number, data, name, frozen, members in cases]
    table = pd.DataFrame(rows, columns=["table", "data", "algorithm", "classification_loss", "reconstruction_loss"])
    with RunFolder(config) as folder:
        folder.write_config()
        folder.write_artifact("information", table.assign(commit=commit()).set_index("table"))
        print(table.to_string(index=False, float_format="%.4f"), folder.path, sep="\n", flush=True)
        folder.write_artifact("information_features", _picture(ctx, {case[2]: case[3] for case in cases[4:]}))
        folder.write_artifact("fedavg_features", _picture(ctx, fedavg_encoders(ctx)))
    ctx.engine.close()
    return table


def _train(algorithm: FedAvg, ctx: Context, params: Params) -> Stack:
    """The models of all clients after one round's local training from `params` [K, ...]."""
    ids = torch.arange(ctx.clients)
    start = tree.spread(params, ctx.clients)
    trained = ctx.engine.train(algorithm, 0, ids, {"model": start}, {"own": {}, "compression": {}})
    update = {**trained.uploads["update"]["encoded"], **trained.uploads["update"]["plain"]}
    return {name: start[name] + update[name] for name in start}


def losses(ctx: Context, frozen: Stack, members: list[int]) -> tuple[float, float]:
    """Cross-entropy of a linear classifier and squared error of a decoder over frozen encoders [k, ...], each
    trained and measured on the examples of `members`."""
    world = ctx.world
    rows = torch.cat([world.of(client) for client in members])
    features = _features(ctx, frozen, rows)
    pixels = world.x[rows].flatten(1).to(world.dtype) / (255 if world.x.dtype == torch.uint8 else 1)
    width, classes, inputs = features.shape[1], world.classes, pixels.shape[1]
    decoder = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU()), nn.Linear(HIDDEN, inputs)
    classifier = nn.Identity(), nn.Linear(width, classes)
    probes = ((FedAvg, classifier, world.y[rows]), (Reconstruction, decoder, pixels))
    found = []
    for kind, parts, targets in probes:
        over = replace(
            world, x=features, y=targets, rows=torch.arange(len(rows), device=world.device),
            sizes=torch.tensor([len(rows)]), transform=Transform(), noise=None,
        )  # fmt: skip
        found.append(_final_loss(ctx, kind(), Classifier(*parts), over))
    return found[0], found[1]


def _final_loss(ctx: Context, algorithm: FedAvg, net: nn.Module, over: World) -> float:
    """The mean loss of `net` over all examples after training it as the only client of world `over`."""
    with seeded(key(ctx.seed, "probe"), held=True):
        for part in net.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()
    inside = replace(ctx, model=Model(net.to(over.device, over.dtype)), world=over, cohort=1).ready()
    params = tree.take(_train(algorithm, inside, inside.model.params()), 0)
    inside.engine.close()
    share = torch.full((len(over.y),), 1 / len(over.y), dtype=over.dtype, device=over.device)
    zero = torch.tensor(0, device=over.device)  # no probe draws noise
    everything = Batch(over.x, over.y, share, key=zero)
    nobody = Client({}, {}, {}, params, zero, zero, zero, zero, zero, zero)
    with torch.no_grad():
        return float(algorithm.loss(inside.model, params, everything, nobody))


def _features(ctx: Context, frozen: Stack, rows: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([concatenate(ctx.model, frozen, ctx.world.prepare(part)) for part in rows.split(1000)])


def fedavg_encoders(ctx: Context) -> dict[str, Stack]:
    """FedAvg's encoder [1, ...] after each of FEDAVG_ROUNDS, both clients taking part in every round."""
    local = replace(ctx.local, epochs=min(FEDAVG_EPOCHS, ctx.local.epochs))
    inside, algorithm, found = replace(ctx, local=local).ready(), FedAvg(), {}
    state = begin(algorithm, algorithm.init(inside, ctx.model.params()), inside)
    while state["round"] < max(FEDAVG_ROUNDS):
        state = one_round(algorithm, state, inside).after
        if state["round"] in FEDAVG_ROUNDS:
            found[f"FedAvg, round {state['round']}"] = tree.spread(encoders(state["params"]), 1)
    inside.engine.close()
    return found


def _picture(ctx: Context, shown: dict[str, Stack]) -> Figure:
    """t-SNE of each encoder's features of evenly spaced examples of both clients."""
    world = ctx.world
    rows = world.rows[torch.linspace(0, len(world.rows) - 1, min(SHOWN, len(world.rows))).long()]
    named = {name: _features(ctx, frozen, rows).cpu() for name, frozen in shown.items()}
    return pictures.features(named, world.y[rows].cpu(), ctx.seed)


def main(words: list[str]) -> None:
    """Compose and check the config, and carry out the study."""
    named = {word.lstrip("+~").partition("=")[0] for word in words}
    overrides = [*(f"{name}={value}" for name, value in SETTING.items() if name not in named), *words]
    study(composed(overrides))
