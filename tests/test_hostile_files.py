"""No code runs on a file's word, and nothing is written outside of the folder that it belongs to."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

from fedexp import files
from fedexp.data.archive import unpack
from fedexp.data.cache import cached
from fedexp.errors import ConfigError
from fedexp.models.pretrained import load
from fedexp.record.checkpoint import Checkpoint


class Attack:
    """Unpickled, it would make a file."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


@pytest.fixture
def planted(tmp_path):
    """The file that must not be there at the end."""
    place = tmp_path / "planted"
    yield place
    assert not place.exists()


@pytest.mark.parametrize("wrap", [lambda attack: attack, lambda attack: {"fingerprint": "own", "values": attack}])
def test_a_malicious_checkpoint_is_refused(tmp_path, planted, wrap):
    """Its checksum is right: anybody can compute one."""
    checkpoint = Checkpoint(tmp_path, "own")
    files.write(checkpoint.newest, lambda file: files.dump(wrap(Attack(planted)), file))
    values, said = checkpoint.load(torch.device("cpu"))
    assert values is None and "does not hold what fedexp saves" in said[0]


@pytest.mark.parametrize("content", [[], {}, 3, {"fingerprint": "own"}, {"values": {}}])
def test_a_checkpoint_of_another_form_is_refused(tmp_path, content):
    checkpoint = Checkpoint(tmp_path, "own")
    files.write(checkpoint.newest, lambda file: files.dump(content, file))
    values, said = checkpoint.load(torch.device("cpu"))
    assert values is None and "belongs to no run" in said[0]


@pytest.mark.parametrize("wrap", [lambda attack: attack, lambda attack: {"listing": "x", "content": attack}])
def test_a_malicious_cache_is_made_anew(tmp_path, planted, wrap, capsys):
    source = tmp_path / "source"
    source.touch()
    files.write(tmp_path / "cache.pt", lambda file: files.dump(wrap(Attack(planted)), file))
    assert cached(tmp_path / "cache.pt", [source], lambda: torch.ones(2)).tolist() == [1, 1]
    assert "rebuilding it" in capsys.readouterr().out


def test_malicious_weights_are_refused(tmp_path, planted):
    torch.save({"weight": Attack(planted)}, tmp_path / "model.pt")
    with pytest.raises(ConfigError, match=r"^model\.pretrained="):
        load(torch.nn.Linear(2, 2), str(tmp_path / "model.pt"))


def member(name, kind=tarfile.REGTYPE, link="", content=b"x"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content) if kind == tarfile.REGTYPE else 0
    return info, io.BytesIO(content)


@pytest.mark.parametrize("members", [
    lambda out: [member("../planted")],
    lambda out: [member("data/../../planted")],
    lambda out: [member(str(out / "planted"))],
    lambda out: [member("data/link", tarfile.SYMTYPE, str(out)), member("data/link/planted")],
    lambda out: [member("data/link", tarfile.SYMTYPE, ".."), member("data/link/../planted")],
    lambda out: [member("data/hard", tarfile.LNKTYPE, "../../planted")],
    lambda out: [member("data/device", tarfile.CHRTYPE)],
])  # fmt: skip
def test_an_archive_that_leads_out_of_its_folder_is_not_unpacked(tmp_path, planted, members):
    with tarfile.open(tmp_path / "data.tar.gz", "w:gz") as archive:
        for each in members(tmp_path):
            archive.addfile(*each)
    try:
        unpack(tmp_path / "data.tar.gz", tmp_path / "data")
    except (OSError, tarfile.TarError):
        assert not (tmp_path / "data").exists()
    inside = [path for path in (tmp_path / "data").rglob("*") if path.is_symlink()]
    assert all(path.resolve().is_relative_to(tmp_path / "data") for path in inside)
    assert not list(tmp_path.glob(".data-*"))


@pytest.mark.parametrize("name", ["../planted", "data/../../planted", "/planted"])
def test_so_is_a_zip_file(tmp_path, planted, name):
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr(name, "x")
        archive.writestr("data/good", "x")
    unpack(tmp_path / "data.zip", tmp_path / "data")
    assert (tmp_path / "data" / "good").exists() and not Path("/planted").exists()
