"""Which convolutions are computed in tiles is measured, kept for the machine, and said."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from worlds import make_context, make_world, start

from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Engine
from fedexp.models import Classifier, Model
from fedexp.models.convolution import tile_sizes


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedexp" / "convolutions.json"


def context(**hardware):
    world = make_world(dtype=torch.float32)
    body = [nn.Conv2d(1, 16, 3), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2), nn.Flatten()]
    model = Model(Classifier(nn.Sequential(*body), nn.Linear(64, 4)))
    ctx = make_context(model, world, precision="float32")
    settings = replace(ctx.hardware, **hardware)
    return replace(ctx, engine=Engine(model, world, ctx.local, settings, 0), hardware=settings)


def test_a_machine_s_choices_are_kept(cache):
    first = start(FedAvg(), context())["tiles"]
    (name,) = json.loads(cache.read_text())  # the one layer of many channels that is not strided
    assert "8 16 6 6 16 16 3 3 1" in name
    assert first in ({}, {"encoder.1": 4})
    for side, expected in ((0, {}), (4, {"encoder.1": 4})):
        cache.write_text(json.dumps({name: side}))
        assert start(FedAvg(), context())["tiles"] == expected
        assert json.loads(cache.read_text()) == {name: side}


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b'{"0": "x"}'])
def test_a_damaged_cache_is_measured_again(cache, content):
    start(FedAvg(), context())
    (name,) = json.loads(cache.read_text())
    cache.write_bytes(content.replace(b"0", name.encode()))
    start(FedAvg(), context())
    assert json.loads(cache.read_text())[name] in (
        0,
        *tile_sizes(torch.zeros(8, 16, 6, 6), torch.zeros(16, 16, 3, 3), 1),
    )


def test_without_a_place_to_keep_them_they_are_measured_all_the_same(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert start(FedAvg(), context())["tiles"] in ({}, {"encoder.1": 4})
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", Path("~no such user").expanduser)  # it raises what it does without a home folder
    assert start(FedAvg(), context())["tiles"] in ({}, {"encoder.1": 4})


@pytest.mark.parametrize("hardware", [{"convolution": "direct"}, {"precision": "bfloat16"}, {"engine": "vectorized"}])
def test_nothing_is_measured_where_there_is_no_choice(cache, hardware):
    assert start(FedAvg(), context(**hardware))["tiles"] == {}
    assert not cache.exists()
