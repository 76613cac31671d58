"""FedBN: statistics by hand, its neutral setting, what crosses, what each client keeps and uses."""

import pytest
import torch
from torch import nn
from worlds import (
    LOCAL,
    assert_mechanisms_agree,
    assert_resumes,
    gap,
    make_context,
    make_model,
    make_world,
    play,
    rounds,
)

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedbn import FedBN
from fedexp.compression.top_k import TopK
from fedexp.data import Transform
from fedexp.engine import Local
from fedexp.models import Classifier, Model
from fedexp.round import personal_models
from fedexp.world import World

NORMALISATION = [f"encoder.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")]


def two_clients():
    """One feature; client 0 holds 0 and 2, client 1 holds 4 and 8; a round is one batch of both examples."""
    x = torch.tensor([0.0, 2.0, 4.0, 8.0], dtype=torch.float64).view(4, 1, 1, 1)
    y = torch.tensor([0, 1, 0, 1])
    world = World(x, y, x, y, torch.arange(4), torch.tensor([2, 2]), 2, Transform(), torch.float64)
    model = Model(Classifier(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()), nn.Linear(1, 2)).double())
    return make_context(model, world, Local(epochs=1, batch_size=2, lr=0.1, momentum=0.0), cohort=2)


def statistics(params):
    return [float(params[f"encoder.0.{name}"]) for name in ("running_mean", "running_var")]


def test_statistics_by_hand():
    """Momentum 0.1 from (0, 1): means 1 and 6, unbiased variances 2 and 8. FedAvg gives everyone their mean."""
    ctx = two_clients()
    (only,) = rounds(FedBN(), ctx, 1)
    first, second = personal_models(FedBN(), only.after, torch.tensor([0, 1]), ctx)
    assert statistics(first) == pytest.approx([0.1, 1.1])
    assert statistics(second) == pytest.approx([0.6, 1.7])
    assert statistics(only.after["params"]) == [0, 1]
    assert statistics(rounds(FedAvg(), ctx, 1)[0].after["params"]) == pytest.approx([0.35, 1.4])


def test_without_normalisation_it_is_fedavg_and_says_so(caplog):
    assert gap(play(FedBN(), "norm"), play(FedAvg(), "norm")) > 1e-3
    assert caplog.messages == []
    assert gap(play(FedBN(), "cnn"), play(FedAvg(), "cnn")) == 0
    assert caplog.messages == [
        "this model has no batch normalisation, so that FedBN is FedAvg; choose, say, model=resnet9"
    ]


def everyone(kind="norm"):
    world = make_world()
    return make_context(make_model(kind, world), world, LOCAL, cohort=6)


def test_only_the_other_layers_cross():
    entries = 4 * 9 + 4 + 36 * 4 + 4  # convolution, head; not the 4 * 4 of BatchNorm
    (only,) = rounds(FedBN(), everyone(), 1)
    assert (only.bytes_up, only.bytes_down) == (6 * entries * 8, 6 * entries * 8)
    assert set(only.uploads["update"]).isdisjoint(NORMALISATION)


def of_client(done, client):
    """The entries that the server knows of one client's trained model."""
    return tree.take(done.models, done.ids.tolist().index(client))


@pytest.mark.parametrize("client", [0, 3])
def test_clients_go_on_with_the_global_layers_and_their_own_normalisation(client):
    """A client's second round is that of FedAvg from what it used after the first."""
    ctx, ids = everyone(), torch.tensor([client])
    (first,) = rounds(FedBN(), ctx, 1)
    (mine,) = personal_models(FedBN(), first.after, ids, ctx)
    (plain,) = rounds(FedAvg(), ctx, 1)  # the same first round, but the server knows all entries
    for name, leaf in mine.items():
        expected = of_client(plain, client)[name] if name in NORMALISATION else first.after["params"][name]
        torch.testing.assert_close(leaf, expected, rtol=0, atol=1e-12)
    (second,) = rounds(FedBN(), ctx, 1, first.after)
    (again,) = rounds(FedAvg(), ctx, 1, {**plain.after, "params": mine})
    (later,) = personal_models(FedBN(), second.after, ids, ctx)
    for name, expected in of_client(again, client).items():
        leaf = later[name] if name in NORMALISATION else of_client(second, client)[name]
        torch.testing.assert_close(leaf, expected, rtol=0, atol=1e-12)


def test_who_never_took_part_uses_the_initial_normalisation():
    world = make_world()
    ctx = make_context(make_model("norm", world), world, LOCAL, cohort=2)
    (only,) = rounds(FedBN(), ctx, 1)
    before, models = ctx.model.params(), personal_models(FedBN(), only.after, torch.arange(6), ctx)
    for client, params in enumerate(models):
        assert params.keys() == before.keys()
        for name in NORMALISATION:
            assert torch.equal(params[name], before[name]) == (client not in only.ids.tolist())
            assert torch.equal(only.after["params"][name], before[name])
        assert torch.equal(params["head.weight"], only.after["params"]["head.weight"])


@pytest.mark.parametrize("workers", [1, 2])
def test_mechanisms_agree(workers):
    assert_mechanisms_agree(FedBN(), "norm", workers=workers)


def test_compression_that_loses_nothing_changes_nothing():
    assert gap(play(FedBN(compression=TopK(share=1.0)), "norm"), play(FedBN(), "norm")) < 1e-12


def test_resumes():
    assert_resumes(FedBN(), "norm")
