"""python -m fedexp partition."""

import pandas as pd
import pytest
import torch

from fedexp.building import build_dataset, build_world
from fedexp.cli import carry_out
from fedexp.config.compose import composed
from fedexp.data import Dataset


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_table_shows_every_client_and_the_emd(capfd):
    assert carry_out("partition", ["partition=shards2", "clients=10"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert "mean EMD 1.6" in lines[0] and max(map(len, lines)) <= 80
    assert lines[2].split() == ["client", *map(str, range(10)), "all", "EMD"]
    clients = [line.split() for line in lines[4:] if line.strip()]
    assert [words[0] for words in clients] == [*map(str, range(10))]
    assert all(sum(map(int, words[1:-2])) == int(words[-2]) and len(words) <= 6 for words in clients)


def test_many_classes_are_said_in_words(capfd):
    words = ["dataset=made", "dataset.classes=40", "dataset.train=4000", "partition=shards1", "clients=40"]
    assert carry_out("partition", words) == 0
    lines = capfd.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and "examples of class:count" in lines[2]
    clients = [line.split() for line in lines[4:] if line.strip()]
    assert len(clients) == 40
    for words in clients:
        assert sum(int(word.partition(":")[2]) for word in words[1:-2]) == int(words[-2])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["partition=dirr"], "did you mean dir?"),
        (["partition=dir", "partition.alpha=-1"], "partition.alpha=-1"),
        (["paper=fedcat", "dataset=svhn"], "paper=fedcat: gives no model for svhn; name one with model=NAME"),
    ],
)
def test_bad_settings_are_said(capfd, words, said):
    assert carry_out("partition", words) == 2
    assert said in capfd.readouterr().err


def test_the_examples_of_each_client_are_written_for_other_programs(capfd, tmp_path):
    words = ["partition=dir0.1", "clients=10", "partition.holdout=0.2", "hardware=cpu"]
    assert carry_out("partition", [*words, "--to", str(tmp_path / "examples.csv")]) == 0
    assert capfd.readouterr().out.rstrip().endswith("examples.csv")
    found = pd.read_csv(tmp_path / "examples.csv")
    config = composed(words)
    world = build_world(config, build_dataset(config))
    for client in range(10):
        own = found[found["client"] == client]
        assert own.loc[own["held_out"] == 0, "example"].tolist() == sorted(world.of(client).tolist())
        held = own.loc[own["held_out"] == 1, "example"].tolist()
        assert len(held) == world.held_sizes[client] and not {*held} & {*world.rows.tolist()}
    assert sorted(found["example"]) == list(range(len(world.y)))


def test_a_file_that_cannot_be_written_is_said(capfd, tmp_path):
    (tmp_path / "file").write_text("")
    assert carry_out("partition", ["clients=10", "--to", str(tmp_path / "file" / "a.csv")]) == 2
    assert f"--to={tmp_path / 'file' / 'a.csv'}: cannot be written (" in capfd.readouterr().err


def test_names_are_shown_as_they_are(capfd):
    """Not as marks that change the colour of what follows."""
    assert carry_out("partition", ["partition=iid", "partition.name='[/x]'", "dataset.name='[red]'", "clients=4"]) == 0
    assert "[/x] of [red]: 4 clients" in capfd.readouterr().out


def wide(transform):
    """Nine classes whose names are twice as wide as they are long."""
    y = torch.arange(60) % 9
    x = torch.zeros(60, 1, 4, 4, dtype=torch.uint8)
    return Dataset("wide", x, y, x, y, 9, transform, class_names=[f"类别甲{number}" for number in "一二三四五六七八九"])


def test_wide_characters_count_twice(capfd):
    assert (
        carry_out("partition", ["dataset=own", f"dataset._target_={__name__}.wide", "clients=3", "clients_per_round=3"])
        == 0
    )
    assert "…" not in capfd.readouterr().out
