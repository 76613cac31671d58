"""Files with a checksum: every damage is noticed, and a full disk spoils nothing."""

import pytest
import torch
from damage import damage
from disks import files_no_longer_than

from fedexp import files


def save(path, content):
    files.write(path, lambda file: files.dump(content, file))


@pytest.fixture
def saved(tmp_path):
    """(a file of about 2.5 MB, what it holds): more than a block of reading."""
    content = {"weights": torch.randn(500_000), "few": torch.arange(7), "nested": [{"name": "x", "number": 1.5}]}
    save(tmp_path / "saved.pt", content)
    return tmp_path / "saved.pt", content


def test_what_was_saved_is_loaded(saved):
    path, content = saved
    for found in (files.load(path), torch.load(path, weights_only=True)):
        assert torch.equal(found["weights"], content["weights"])
        assert torch.equal(found["few"], content["few"])
        assert found["nested"] == content["nested"]
    assert [each.name for each in path.parent.iterdir()] == ["saved.pt"]


def test_any_damage_is_noticed(saved, draw):
    path, _ = saved
    whole = path.read_bytes()
    for _ in range(300):
        path.write_bytes(whole)
        what = damage(path, draw)
        with pytest.raises(files.Damaged, match="checksum"):
            pytest.fail(f"{what} was not noticed: {files.load(path)}")


def test_every_flipped_bit_of_the_last_line_is_noticed(tmp_path):
    path = tmp_path / "small.pt"
    save(path, [1, 2])
    whole = path.read_bytes()
    start = whole.rindex(b"\nfedexp blake2b ")
    for bit in range(8 * start, 8 * len(whole)):
        spoilt = bytearray(whole)
        spoilt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(spoilt)
        with pytest.raises(files.Damaged):
            pytest.fail(f"bit {bit} was not noticed: {files.load(path)}")


def test_what_has_no_checksum_or_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "empty.pt").touch()
    torch.save([1, 2], tmp_path / "old.pt")
    for name in ("empty.pt", "old.pt"):
        with pytest.raises(files.Damaged, match=r"has no checksum at its end: .* an earlier version"):
            files.load(tmp_path / name)
    with pytest.raises(files.Damaged, match="cannot be read"):
        files.load(tmp_path)


@pytest.mark.parametrize("room", [0, 10, 1_000_000, 2_000_000])
def test_a_full_disk_leaves_the_old_file(saved, room):
    """It is an OSError wherever it happens: in the head, in the middle of a tensor, in the last line."""
    path, content = saved
    with files_no_longer_than(room), pytest.raises(OSError, match="too large"):
        save(path, {"weights": torch.randn(500_000)})
    assert torch.equal(files.load(path)["weights"], content["weights"])
    assert [each.name for each in path.parent.iterdir()] == ["saved.pt"]
