"""Tiny-ImageNet from a made folder of its layout; what is said where there is none."""

import hashlib
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import torch
from torchvision.io import write_jpeg

from fedexp.data import Transform
from fedexp.data import tiny_imagenet as module
from fedexp.data.tiny_imagenet import tiny_imagenet
from fedexp.errors import ConfigError


@pytest.fixture
def root(tmp_path):
    """Two classes: n01 is dark, n02 bright; the validation pictures are listed out of order."""
    base = tmp_path / "tiny-imagenet-200"
    for name, shade in (("n02", 250), ("n01", 5)):
        for number in range(3):
            folder = base / "train" / name / "images"
            folder.mkdir(parents=True, exist_ok=True)
            write_jpeg(torch.full((3, 64, 64), shade, dtype=torch.uint8), str(folder / f"{name}_{number}.JPEG"))
    (base / "val" / "images").mkdir(parents=True)
    lines = []
    for number, (name, shade) in enumerate((("n02", 250), ("n01", 5), ("n02", 250), ("n01", 5))):
        write_jpeg(
            torch.full((3, 64, 64), shade, dtype=torch.uint8), str(base / "val" / "images" / f"val_{number}.JPEG")
        )
        lines.append(f"val_{number}.JPEG\t{name}\t0\t0\t62\t62")
    (base / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_pictures_and_labels_belong_together(root):
    dataset = tiny_imagenet(str(root), Transform(), download=False)
    assert dataset.train_x.shape == (6, 3, 64, 64)
    assert dataset.class_names == ["n01", "n02"]
    for images, labels in ((dataset.train_x, dataset.train_y), (dataset.test_x, dataset.test_y)):
        assert ((images.float().mean((1, 2, 3)) > 128).long() == labels).all()
    assert dataset.test_y.tolist() == [1, 0, 1, 0]


def test_a_class_without_pictures_is_named_and_hidden_folders_are_none(root):
    train = root / "tiny-imagenet-200" / "train"
    shutil.copytree(train / "n01", train / ".ipynb_checkpoints")
    assert tiny_imagenet(str(root), Transform(), download=False).class_names == ["n01", "n02"]
    (train / "n01" / "images").rename(train / "n01" / "pictures")
    with pytest.raises(ConfigError, match=r"train/ has no pictures CLASS/images/\*\.JPEG of n01"):
        tiny_imagenet(str(root), Transform(), download=False)


def test_it_is_decoded_once_and_resized(root):
    first = tiny_imagenet(str(root), Transform(), download=False, size=32)
    caches = list((root / "tiny-imagenet-200").glob(".fedexp-32-*.pt"))
    assert len(caches) == 1
    written = caches[0].stat().st_mtime_ns
    again = tiny_imagenet(str(root), Transform(), download=False, size=32)
    assert again.train_x.shape == (6, 3, 32, 32)
    assert torch.equal(first.train_x, again.train_x)
    assert caches[0].stat().st_mtime_ns == written


def test_absence_says_what_to_place_where(tmp_path):
    with pytest.raises(ConfigError, match=r"dataset\.root.*tiny-imagenet-200.*val_annotations"):
        tiny_imagenet(str(tmp_path), Transform(), download=False)


@pytest.mark.parametrize(("lines", "said"), [
    (lambda lines: lines[:-1], "lists 3 pictures, images/ beside it holds 4"),
    (lambda lines: [*lines, lines[0]], "lists 5 pictures, images/ beside it holds 4"),
    (lambda lines: [lines[0].replace("val_0", "val_9"), *lines[1:]], "must list each of them once"),
    (lambda lines: [lines[0].replace("n02", "n03"), *lines[1:]], r"has a line .*'val_0\.JPEG', 'n03'"),
    (lambda lines: ["val_0.JP"], r"has a line .*'val_0\.JP'"),
])  # fmt: skip
def test_a_listing_of_other_pictures_is_refused(root, lines, said):
    listing = root / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    listing.write_text("\n".join(lines(listing.read_text().splitlines())) + "\n")
    with pytest.raises(ConfigError, match=rf"^dataset\.root={listing}: .*{said}"):
        tiny_imagenet(str(root), Transform(), download=False)


def test_a_listing_that_is_no_text_is_refused(root):
    listing = root / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    listing.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=rf"^dataset\.root={listing}: cannot be read"):
        tiny_imagenet(str(root), Transform(), download=False)


@pytest.fixture
def published(root, tmp_path_factory, monkeypatch):
    """Serves the folder as the data set's archive; returns the archive."""
    site = tmp_path_factory.mktemp("site")
    archive = shutil.make_archive(str(site / "tiny-imagenet-200"), "zip", root, "tiny-imagenet-200")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=site)) as server:
        Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        monkeypatch.setattr(module, "_URL", f"http://127.0.0.1:{server.server_port}/tiny-imagenet-200.zip")
        declare(monkeypatch, archive)
        yield site / "tiny-imagenet-200.zip"
        server.shutdown()


def declare(monkeypatch, archive):
    """Make a file the published archive."""
    with open(archive, "rb") as file:
        monkeypatch.setattr(module, "_MD5", hashlib.file_digest(file, "md5").hexdigest())


def test_it_is_downloaded_where_it_is_not_there(root, published, tmp_path):
    place = tmp_path / "elsewhere"
    fetched = tiny_imagenet(str(place), Transform())
    assert torch.equal(fetched.train_x, tiny_imagenet(str(root), Transform()).train_x)
    published.unlink()
    assert torch.equal(tiny_imagenet(str(place), Transform()).test_y, fetched.test_y)  # not asked for again


def test_another_archive_is_refused(published, tmp_path):
    published.write_bytes(published.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"could not be downloaded.*corrupted.*; unpack http"):
        tiny_imagenet(str(tmp_path / "elsewhere"), Transform())


def test_an_archive_that_does_not_unpack_leaves_no_folder_behind(published, tmp_path, monkeypatch):
    """Otherwise the next start would train on the part that was unpacked."""
    whole = published.read_bytes()
    middle = whole.index(b"n02_0.JPEG") + 200  # within a picture: the list of files at the end stays intact
    published.write_bytes(whole[:middle] + bytes(8) + whole[middle + 8 :])
    declare(monkeypatch, published)
    place = tmp_path / "elsewhere"
    for _ in range(2):
        with pytest.raises(ConfigError, match="could not be downloaded"):
            tiny_imagenet(str(place), Transform())
        assert [file.name for file in place.iterdir()] == ["tiny-imagenet-200.zip"]


def test_without_a_network_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_URL", "http://127.0.0.1:9/tiny-imagenet-200.zip")  # a port where nothing answers
    with pytest.raises(ConfigError, match=r"could not be downloaded.*; unpack http"):
        tiny_imagenet(str(tmp_path), Transform())
