"""What is kept beside the files that it was computed from: used while they are the same, and only while it is whole."""

import os

import pytest
import torch
from damage import damage
from disks import resize, small_disk

from fedexp.data.cache import cached

RIGHT = torch.arange(3000).to(torch.uint8)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """(cache, its sources, how often its content was computed, a function that reads it)."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    sources = [tmp_path / name for name in ("a", "b")]
    for source in sources:
        source.write_text(source.name)
    computed = []

    def compute():
        computed.append(1)
        return RIGHT.clone()

    cache = tmp_path / ".cache.pt"
    return cache, sources, computed, lambda: cached(cache, sources, compute)


def test_it_is_computed_once_until_a_source_changes(kept, capsys):
    _, sources, computed, read = kept
    for _ in range(2):
        assert torch.equal(read(), RIGHT)
        assert len(computed) == 1
    sources[1].write_text("longer")
    for _ in range(2):
        read()
        assert len(computed) == 2
    assert capsys.readouterr().out == ""


def test_sources_of_equal_size_and_age_that_swap_their_names_are_noticed(kept):
    """Pictures of equal size, unpacked in one second, that are moved between the folders of two classes."""
    cache, (first, second), computed, read = kept
    for source in (first, second):
        os.utime(source, (0, 0))
    read()
    beside = cache.with_name("beside")
    first.rename(beside)
    second.rename(first)
    beside.rename(second)
    assert first.read_text() == "b" and first.stat().st_mtime == second.stat().st_mtime
    read()
    assert len(computed) == 2


def test_every_damage_is_noticed_and_said_and_the_cache_rebuilt(kept, capsys, draw):
    cache, _, computed, read = kept
    read()
    whole = cache.read_bytes()
    for count in range(100):
        what = damage(cache, draw)
        assert torch.equal(read(), RIGHT), what
        assert len(computed) == 2 + count, what
        said = capsys.readouterr().out
        assert f"fedexp: {cache} " in said and "checksum" in said and "rebuilding it" in said
        assert len(cache.read_bytes()) == len(whole)
    read()
    assert (len(computed), capsys.readouterr().out) == (101, "")


def test_a_cache_without_a_checksum_is_rebuilt(kept, capsys):
    """As versions before it wrote them."""
    cache, _, computed, read = kept
    read()
    torch.save(torch.load(cache, weights_only=True), cache)
    assert torch.equal(read(), RIGHT)
    read()
    assert len(computed) == 2
    assert "has no checksum at its end" in capsys.readouterr().out


def test_one_that_cannot_be_written_is_done_without(kept, capsys):
    cache, _, computed, read = kept
    cache.mkdir()
    (cache.parent / "user").touch()
    for count in (1, 2):
        assert torch.equal(read(), RIGHT)
        assert len(computed) == count
    assert capsys.readouterr().out.count(f"could not write a cache at {cache}") == 2
    assert not [path for path in cache.parent.iterdir() if path.suffix == ".tmp"]


def test_beside_files_that_may_only_be_read_the_users_own_cache_is_used(tmp_path, monkeypatch, capsys):
    """Two folders of one name do not meet there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    computed = []

    def read(folder, number):
        def compute():
            computed.append(folder)
            return torch.full((3,), number)

        return cached(folder / ".cache.pt", [folder / "source"], compute)

    with small_disk(tmp_path / "first", "size=1m") as first, small_disk(tmp_path / "second", "size=1m") as second:
        for disk in (first, second):
            (disk / "source").write_text("same")
            resize(disk, "ro")
        for _ in range(2):
            assert read(first, 1).tolist() == [1, 1, 1]
            assert read(second, 2).tolist() == [2, 2, 2]
    assert computed == [first, second]
    assert len(list((tmp_path / "user" / "fedexp").iterdir())) == 2
    assert capsys.readouterr().out == ""


def test_what_killed_processes_left_is_removed_and_what_others_write_is_not(kept):
    cache, _, _, read = kept
    old, new = (cache.with_name(f".{cache.name}.{number}.tmp") for number in (1, 2))
    for left in (old, new):
        left.write_bytes(b"half of")
    os.utime(old, (0, 0))
    read()
    assert not old.exists() and new.exists()
