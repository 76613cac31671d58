"""Tiny-ImageNet from a made folder of its layout; what is said where there is none."""

import pytest
import torch
from torchvision.io import write_jpeg

from fedexp.data import Transform
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
