"""The information study on made clients: what its probes measure, and what it leaves."""

import pandas as pd
import pytest
import torch
from composing import composed
from worlds import make_context, make_model, make_world

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedconcat import encoders
from fedexp.building import build_context, build_dataset
from fedexp.cli import carry_out
from fedexp.cli.study import fedavg_encoders, losses, study
from fedexp.engine import Local


def test_features_that_hold_the_label_have_the_smaller_loss():
    """An encoder whose features say nothing leaves the entropy of the labels; a useful one less."""
    world = make_world([40, 30])
    model = make_model("cnn", world)
    ctx = make_context(model, world, Local(epochs=30, batch_size=10, lr=0.2, momentum=0.9))
    useful = {name: leaf[None] for name, leaf in encoders(model.params()).items()}
    blind = {name: torch.zeros_like(leaf) for name, leaf in useful.items()}
    shares = torch.bincount(world.y[world.rows], minlength=4) / 70
    entropy = -float((shares * shares.log()).sum())
    knowing, guessing = losses(ctx, useful, [0, 1]), losses(ctx, blind, [0, 1])
    assert guessing[0] == pytest.approx(entropy, abs=0.05)
    assert knowing[0] < guessing[0] - 0.05
    assert knowing[1] < guessing[1]


def alone(config, client):
    """(the encoder of one of the first two clients after training by itself, its number of examples)."""
    ctx = build_context(config, build_dataset(config))
    return encoders(tree.take(trained(ctx.ready().engine, [client], ctx.model.params()), 0)), int(ctx.sizes[client])


def trained(engine, clients, params):
    """What clients make of `params` in the first round's local training [K, ...]."""
    start = tree.spread(params, len(clients))
    empty = {"own": {}, "compression": {}}
    done = engine.train(FedAvg(), 0, torch.tensor(clients), {"model": start}, empty)
    engine.close()
    update = {**done.uploads["update"]["encoded"], **done.uploads["update"]["plain"]}
    return {name: start[name] + update[name] for name in start}


def test_it_leaves_both_tables(tmp_path, monkeypatch):
    """Each line's losses are those of the right encoders, on the right clients' data."""
    probes = []

    def noted(ctx, frozen, members):
        found = losses(ctx, frozen, members)
        probes.append((frozen, members, found))
        return found

    monkeypatch.setattr("fedexp.cli.study.losses", noted)
    words = [
        "paper=fedconcat", "dataset=digits", "model=mcmahan_cnn", "model.hidden=16", "partition=dir0.5", "clients=20",
        "local.epochs=1", "tracking=none", f"output_root={tmp_path}", "hardware=cpu",
    ]  # fmt: skip
    config = composed(*words)
    study(config)
    (table,) = tmp_path.glob("*/information.csv")
    found = pd.read_csv(table)
    (first, few), (second, many) = (alone(config, client) for client in (0, 1))
    assert few != many
    average = {name: (few * first[name] + many * second[name]) / (few + many) for name in first}
    expected = {
        (6, "client1", "own_encoder"): ([first], [0]), (6, "client1", "exchanged_encoder"): ([second], [0]),
        (6, "client2", "own_encoder"): ([second], [1]), (6, "client2", "exchanged_encoder"): ([first], [1]),
        (7, "both", "encoder_client1"): ([first], [0, 1]), (7, "both", "encoder_client2"): ([second], [0, 1]),
        (7, "both", "encoder_averaged"): ([average], [0, 1]),
        (7, "both", "encoder_concatenated"): ([first, second], [0, 1]),
    }  # fmt: skip
    assert list(found[["table", "data", "algorithm"]].itertuples(index=False, name=None)) == list(expected)
    for (models, members), (frozen, probed, _) in zip(expected.values(), probes, strict=True):
        assert probed == members
        torch.testing.assert_close(frozen, tree.stack(models))
    columns = found[["classification_loss", "reconstruction_loss"]]
    assert columns.to_numpy() == pytest.approx(torch.tensor([loss for *_, loss in probes]).numpy())
    assert (found["classification_loss"] > 0).all()
    assert found["commit"].nunique() <= 1  # none outside of a source checkout
    assert found["reconstruction_loss"].between(0, 0.5).all()
    assert (table.parent / "information_features.png").exists()
    assert (table.parent / "fedavg_features.png").exists()


def test_two_clients_are_needed(capsys):
    assert carry_out("study", ["dataset=digits", "partition=iid", "clients=1"]) == 2
    assert "clients=1: must be at least 2" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["algorithm=scaffold"], ["privacy=dp_fedavg"], ["server_optimizer=adam"]])
def test_what_has_no_part_in_it_is_refused(capsys, words):
    assert carry_out("study", ["dataset=digits", "model=mcmahan_cnn", *words]) == 2
    assert f"{words[0]}: has no part in the study; leave it out" in capsys.readouterr().err


def test_fedavg_encoders_are_those_of_its_rounds():
    """The first is the mean of what both clients make of the start; later ones go on from it."""
    world = make_world([40, 20])
    model = make_model("cnn", world)
    ctx = make_context(model, world, Local(epochs=2, batch_size=10, lr=0.1), cohort=2)
    found = fedavg_encoders(ctx)
    assert list(found) == ["FedAvg, round 1", "FedAvg, round 3", "FedAvg, round 5"]
    models = trained(ctx.engine, [0, 1], model.params())
    for name, leaf in encoders(tree.mean(models, torch.tensor([40, 20]))).items():
        torch.testing.assert_close(found["FedAvg, round 1"][name][0], leaf)
        assert not torch.equal(found["FedAvg, round 3"][name], found["FedAvg, round 1"][name])
