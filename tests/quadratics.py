"""Clients whose losses are quadratics of one weight w, so that every number of a round can be computed by hand.

Client k's loss is (w - c_k)^2 / 2 at its center c_k. The usual pair has centers 0 and 4, w begins at 1 and the learning
rate is 0.1: one step leads to 0.9 and 1.3, two to 0.81 and 1.57.
"""

from dataclasses import dataclass

import torch
from torch import nn
from worlds import make_context

from fedexp.algorithms.fedavg import FedAvg
from fedexp.data import Transform
from fedexp.engine import Local
from fedexp.models import Classifier, Model
from fedexp.world import World

NAME = "head.weight"  # of w in a model


@dataclass(frozen=True, kw_only=True)
class Quadratic(FedAvg):
    """Mixed into an algorithm, after it: `class Own(Ditto, Quadratic)`."""

    def loss(self, model, params, batch, client):
        return batch.mean((params[NAME].flatten() - batch.x.flatten(1)).square().sum(1) / 2)


def pair(sizes=(1, 1), steps=1, local=None, centers=(0.0, 4.0), start=1.0, **settings):
    """The context of clients with these centers, of so many examples each."""
    x = torch.repeat_interleave(torch.tensor(centers, dtype=torch.float64), torch.tensor(sizes)).view(-1, 1, 1, 1)
    y, rows = torch.zeros(len(x), dtype=torch.int64), torch.arange(len(x))
    world = World(x, y, x, y, rows, torch.tensor(sizes), 1, Transform(), torch.float64)
    model = Model(Classifier(nn.Flatten(), nn.Linear(1, 1, bias=False)).double())
    nn.init.constant_(model.net.head.weight, start)
    local = local or Local(steps=steps, batch_size=100, lr=0.1, momentum=0.0)
    return make_context(model, world, local, len(centers), **settings)


def weight(params):
    """w of a model."""
    return float(params[NAME])


@dataclass(frozen=True, kw_only=True)
class Squares(FedAvg):
    """(b h - y)^2 / 2 where an example is (1, y), b the encoder's weight and h the head's."""

    def loss(self, model, params, batch, client):
        one, y = batch.x.flatten(1).split(1, dim=1)
        answer = model.head(params, model.encode(params, one)) - y
        return batch.mean(answer.square().flatten() / 2)


def two_layers(sizes=(1, 1), **settings):
    """b = h = 1; client 0's targets are 0, client 1's are 2; a round is one step of 0.1."""
    y = torch.repeat_interleave(torch.tensor([0.0, 2.0], dtype=torch.float64), torch.tensor(sizes))
    x = torch.stack([torch.ones_like(y), y], 1).view(-1, 1, 1, 2)
    labels = torch.zeros(len(y), dtype=torch.int64)
    world = World(x, labels, x, labels, torch.arange(len(y)), torch.tensor(sizes), 1, Transform(), torch.float64)
    model = Model(Classifier(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double())
    for parameter in model.net.parameters():
        nn.init.ones_(parameter)
    local = Local(**{"epochs": 1, "batch_size": 10, "lr": 0.1, "momentum": 0.0, **settings})
    return make_context(model, world, local, cohort=2)


def layers(params):
    """(b, h) of a model."""
    return float(params["encoder.weight"]), float(params["head.weight"])
