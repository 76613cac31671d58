"""The user's own pictures."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from composing import composed
from PIL import Image
from program import run

from fedexp.building import build_dataset
from fedexp.data import Transform
from fedexp.data.image_folder import image_folder
from fedexp.errors import ConfigError


def paint(path, value, size=(6, 5)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size[1], size[0], 3), value, dtype=np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path):
    for part in ("train", "test"):
        for label, name in enumerate(("cat", "dog")):
            for i in range(3):
                paint(tmp_path / part / name / f"{i}.png", 100 * label + i)
    return tmp_path


def test_reads_classes_in_order(folder):
    data = image_folder(str(folder), Transform())
    assert data.train_x.shape == (6, 3, 5, 6)
    assert data.train_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.class_names == ["cat", "dog"]
    assert data.train_x[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102]
    assert data.owners is None


def test_other_files_are_left_out_and_named(folder, caplog):
    paint(folder / "train" / "dog" / "3.TIF", 103)
    for name in ("notes.txt", "scan.dcm", ".hidden"):
        (folder / "train" / "cat" / name).write_text("no picture")
    data = image_folder(str(folder), Transform())
    assert data.train_x[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102, 103]
    paint(folder / "train" / "loose.png", 9)
    for hidden in (".ipynb_checkpoints", "cat/.cache"):
        paint(folder / "train" / hidden / "0.png", 8)
    data = image_folder(str(folder), Transform())
    assert data.class_names == ["cat", "dog"]
    assert data.train_x[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102, 103]
    assert "3 files are no pictures in class folders, and left out: .dcm, .txt, loose.png" in caplog.text


def test_cache_is_used_and_rebuilt_when_the_folder_changes(folder):
    image_folder(str(folder), Transform())
    cache = next(folder.glob(".fedexp-*.pt"))
    before = cache.stat().st_mtime_ns
    image_folder(str(folder), Transform())
    assert cache.stat().st_mtime_ns == before
    paint(folder / "train" / "dog" / "2.png", 77)
    os.utime(folder / "train" / "dog" / "2.png", ns=(before + 10**9, before + 10**9))
    assert image_folder(str(folder), Transform()).train_x[5, 0, 0, 0] == 77


def test_client_level_gives_owners(tmp_path):
    for client in ("anna", "ben"):
        for name in ("cat", "dog"):
            paint(tmp_path / "train" / client / name / "0.png", 9)
    paint(tmp_path / "test" / "cat" / "0.png", 9)
    data = image_folder(str(tmp_path), Transform())
    assert data.owners.tolist() == [0, 0, 1, 1]
    assert data.train_y.tolist() == [0, 1, 0, 1]


def test_size_and_grey(folder):
    paint(folder / "train" / "cat" / "big.png", 40, (12, 12))
    with pytest.raises(ConfigError, match=r"dataset\.size=null.*different shapes"):
        image_folder(str(folder), Transform())
    data = image_folder(str(folder), Transform(), size=4, grey=True)
    assert data.train_x.shape == (7, 1, 4, 4)
    assert data.train_x.dtype == torch.uint8


@pytest.mark.parametrize("size", [None, 4])
def test_pictures_of_16_bits_become_8_bits(folder, size):
    deep = np.full((5, 6), 51 * 256 + 200, dtype=np.uint16)
    Image.fromarray(deep).save(folder / "train" / "cat" / "0.png")
    data = image_folder(str(folder), Transform(), size=size)
    assert data.train_x.dtype == torch.uint8
    assert data.train_x[:2, 0, 0, 0].tolist() == [51, 1]


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_pictures_of_32_bits_are_refused(folder, kind):
    """Pillow would clip them, or keep their lower bits."""
    Image.fromarray(np.ones((5, 6), dtype=kind)).save(folder / "train" / "cat" / "0.tif")
    with pytest.raises(ConfigError, match=r"cat/0\.tif: has 32 bits per pixel and colour, whose scale is unknown"):
        image_folder(str(folder), Transform())


def test_a_run_that_goes_on_says_that_its_pictures_have_changed(folder, monkeypatch, tmp_path, capfd):
    words = ["dataset=image_folder", f"dataset.root={folder}", "partition=iid", "model.hidden=4", "clients=3"]
    words += ["clients_per_round=2", "local.batch_size=2"]
    assert run(monkeypatch, tmp_path / "out", *words, "rounds=1") == 0
    capfd.readouterr()
    assert run(monkeypatch, tmp_path / "out", *words, "rounds=2") == 0
    assert "the examples are not those" not in capfd.readouterr().out
    paint(folder / "test" / "dog" / "0.png", 7)
    assert run(monkeypatch, tmp_path / "out", *words, "rounds=3") == 0
    said = capfd.readouterr().out
    assert "the examples are not those that this run was begun with" in said and "going on after round 2" in said


@pytest.mark.parametrize("kind", ["gif", "webp", "png", "jpg"])
def test_grey_is_one_channel_whatever_the_kind_of_file(tmp_path, kind):
    for part in ("train", "test"):
        (tmp_path / part / "cat").mkdir(parents=True)
        Image.new("RGB", (16, 16), (200, 100, 50)).save(tmp_path / part / "cat" / f"0.{kind}")
    data = image_folder(str(tmp_path), Transform(), grey=True)
    assert data.train_x.shape == (1, 1, 16, 16)
    assert (data.train_x.float() - (0.299 * 200 + 0.587 * 100 + 0.114 * 50)).abs().max() < 3


def configured(folder, *words):
    """The data set that the program builds with dataset=image_folder."""
    return build_dataset(composed("dataset=image_folder", f"dataset.root={folder}", *words))


@pytest.mark.parametrize(("grey", "channels"), [("false", 3), ("true", 1)])
def test_shipped_mean_suits_colour_and_grey(folder, grey, channels):
    data = configured(folder, f"dataset.grey={grey}")
    x = data.transform(data.train_x)
    assert x.shape == (6, channels, 5, 6)
    assert torch.equal(x, Transform(mean=[0.5] * channels, std=[0.5] * channels)(data.train_x))


@pytest.mark.parametrize(
    ("grey", "key", "value", "channels"),
    [("true", "mean", "[0.1,0.2,0.3]", 1), ("true", "std", "[0.1,0.2,0.3]", 1), ("false", "mean", "[0.1,0.2]", 3)],
)
def test_mean_and_std_of_other_channels_are_refused(folder, grey, key, value, channels):
    with pytest.raises(ConfigError, match=rf"dataset\.transform\.{key}=.*{channels} channels"):
        configured(folder, f"dataset.grey={grey}", f"dataset.transform.{key}={value}")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "test").rename(f / "elsewhere"), r"has no folder test/"),
        (lambda f: paint(f / "test" / "cow" / "0.png", 1), r"classes that train/ lacks: cow"),
        (lambda f: (f / "train" / "cat" / "0.png").write_bytes(b"no picture"), r"cat/0\.png: does not decode"),
        (lambda f: paint(f / "test" / "dog" / "1.png", 1, (7, 5)), r"6 x 5 in .*cat/0.png and 7 x 5 in .*1.png"),
        (lambda f: paint(f / "train" / "a" / "b" / "c" / "0.png", 1), r"must all lie in"),
        (lambda f: (f / "train" / "cat" / "9.png").symlink_to("nowhere"), r"cat/9\.png: cannot be read \(No such file"),
        (lambda f: os.mkfifo(f / "train" / "cat" / "9.png"), r"cat/9\.png: is not an ordinary file"),
        (lambda f: paint(f / "test" / "dog" / "\udcff.png", 1), r"'.*dog/.udcff.png': has a name that is no text in"),
    ],
)
def test_errors_name_what_is_wrong(folder, spoil, message):
    spoil(folder)
    with pytest.raises(ConfigError, match=message):
        image_folder(str(folder), Transform())


@pytest.fixture
def no_root():
    """The rights of an ordinary user: root may read all folders."""
    own = os.geteuid()
    os.seteuid(own or 65534)
    yield
    os.seteuid(own)


@pytest.mark.parametrize("hidden", ["", "train", "train/dog", "test/dog"])
def test_a_folder_that_cannot_be_read_is_not_left_out(no_root, hidden):
    """Its class would be missing: a problem of fewer classes."""
    with TemporaryDirectory() as root:
        for name in ("train/cat", "train/dog", "test/cat", "test/dog"):
            paint(Path(root, name, "0.png"), 0)
        Path(root, hidden).chmod(0)
        with pytest.raises(ConfigError, match=rf"^dataset.root={Path(root, hidden)}.*: cannot be read .Permission"):
            image_folder(root, Transform())
        Path(root, hidden).chmod(0o755)


@pytest.mark.parametrize("kind", ["png", "jpg", "bmp", "gif", "webp"])
def test_damaged_pictures_are_named(folder, kind, draw):
    """Of a PNG, which carries checksums, no flipped bit goes unnoticed; of the others those that cannot be decoded."""
    file = folder / "train" / "cat" / f"damaged.{kind}"
    Image.fromarray(np.arange(90, dtype=np.uint8).reshape(5, 6, 3)).save(file)
    whole, expected = file.read_bytes(), image_folder(str(folder), Transform()).train_x
    for _ in range(20):
        spoilt = bytearray(whole)
        spoilt[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        file.write_bytes(spoilt)
        for cache in folder.glob(".fedexp-*.pt"):
            cache.unlink()
        try:
            found = image_folder(str(folder), Transform()).train_x
        except ConfigError as error:
            assert str(file) in str(error) and "\n" not in str(error)
        else:
            assert kind != "png" or torch.equal(found, expected), "a bit of the file's end, behind the picture"


def test_a_bitmap_is_read(folder):
    Image.new("RGB", (6, 5), (1, 2, 3)).save(folder / "train" / "cat" / "0.bmp")
    assert image_folder(str(folder), Transform()).train_x[0, :, 0, 0].tolist() == [1, 2, 3]


def test_a_picture_that_is_too_large_for_memory_is_refused_before_it_is_decoded(folder):
    bomb = folder / "train" / "dog" / "bomb.png"
    Image.new("1", (20000, 20000)).save(bomb)
    with pytest.raises(ConfigError, match=rf"{bomb}: has 20000 x 20000 pixels; at most 50000000 .*dataset.max_pixels"):
        image_folder(str(folder), Transform(), size=4)
    with pytest.raises(ConfigError, match=r"has 6 x 5 pixels; at most 29 are read"):
        image_folder(str(folder), Transform(), max_pixels=29)
