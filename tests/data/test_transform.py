"""Normalising and augmenting on the device."""

import pytest
import torch
import torch.nn.functional as F
from torchvision.transforms.functional import rotate

from fedexp.data import Transform
from fedexp.data.made import made
from fedexp.errors import ConfigError
from fedexp.randomness import uniform


def test_normalises_per_channel():
    x = torch.full((2, 2, 3, 3), 51, dtype=torch.uint8)
    y = Transform(mean=[0.1, 0.2], std=[0.5, 0.1])(x)
    torch.testing.assert_close(y[0, :, 0, 0], torch.tensor([0.2, 0.0]))


def test_standardise_is_per_image():
    x = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    y = Transform(standardise=True)(x).flatten(1)
    torch.testing.assert_close(y.mean(1), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(y.std(1, correction=0), torch.ones(4))
    flat = Transform(standardise=True)(torch.full((1, 1, 4, 4), 7, dtype=torch.uint8))
    assert flat.abs().max() == 0  # no division by a zero deviation
    spot = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    spot[0, 0, 1, 2] = 51  # mean 0.2 / 16, deviation 0.05: below 1 / sqrt(16), by which it is divided
    assert float(Transform(standardise=True)(spot).max()) == pytest.approx((0.2 - 0.2 / 16) * 4)


def test_crop_takes_every_place_and_test_takes_the_centre():
    x = torch.arange(36, dtype=torch.float32).view(1, 1, 6, 6)
    transform = Transform(crop=4)
    centre = transform(x)
    assert centre[0, 0, 0, 0] == 7
    crops = transform(x.expand(500, 1, 6, 6), torch.arange(500))
    assert set(crops[:, 0, 0, 0].tolist()) == {0.0, 1.0, 2.0, 6.0, 7.0, 8.0, 12.0, 13.0, 14.0}
    assert transform.shape((1, 6, 6)) == (1, 4, 4)
    # every crop is a contiguous piece
    assert torch.equal(crops - crops[:, :, :1, :1], (centre - centre[0, 0, 0, 0]).expand(500, 1, 4, 4))


def test_crop_stays_within_the_image_at_the_largest_draw():
    x = torch.arange(40 * 40, dtype=torch.float32).view(1, 1, 40, 40)
    crop = Transform(crop=32)(x, torch.tensor([15816853]))
    assert max(crop[0, 0, 0, 0] // 40, crop[0, 0, 0, 0] % 40) == 8


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_crop_of_one_side_alone(shape):
    x = torch.arange(24, dtype=torch.float32).view(1, 1, *shape)
    transform = Transform(crop=4)
    assert transform(x).shape == transform(x, torch.arange(1)).shape == (1, 1, 4, 4)
    assert torch.equal(transform(x), x[..., 1:5, :] if shape[0] == 6 else x[..., 1:5])


@pytest.mark.parametrize(
    ("shape", "transform"),
    [
        ([1, 28, 28], Transform(crop=32, pad=2)),
        ([1, 40, 28], Transform(crop=32)),
        ([1, 8, 8], Transform(crop=0)),
    ],
)
def test_crop_that_a_test_image_lacks_is_refused(shape, transform):
    with pytest.raises(ConfigError, match=rf"dataset\.transform\.crop={transform.crop}: .* {shape[2]}: test images"):
        made(transform, shape, train=3, test=2)
    assert made(Transform(crop=shape[2], pad=2), shape, train=3, test=2).transform.crop == shape[2]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rotate": -10.0}, "rotate=-10.0: must be from 0 to 180"),
        ({"crop": 8, "pad": -3}, "pad=-3: must be at least 0"),
        ({"pad": 4}, "pad=4: has no effect without dataset.transform.crop"),
        ({"crop": 8, "pad": 2, "pad_mode": "mirror"}, "pad_mode=mirror: must be one of constant, reflect"),
        ({"crop": 8, "pad_mode": "reflect"}, "pad_mode=reflect: has no effect without dataset.transform.pad; use cons"),
        ({"crop": 8, "pad": 8, "pad_mode": "reflect"}, "pad=8: must be below the images' shortest side"),
        ({"mean": [0.5], "std": [0.0]}, "std=.0.0.: must be finite and not 0"),
        ({"mean": [float("nan")], "std": [1.0]}, "mean=.nan.: must be finite"),
        ({"mean": [1e39], "std": [1.0]}, "mean=.1e.39.: must be finite in single precision"),
        ({"mean": [0.5], "std": [1e-320]}, "std=.1e-320.: must be finite and not 0 in single precision"),
        ({"std": [0.5]}, "std=.0.5.: has no effect without dataset.transform.mean"),
    ],
)
def test_what_cannot_work_or_is_of_no_effect_is_refused(keys, said):
    with pytest.raises(ConfigError, match=rf"dataset\.transform\.{said}"):
        made(Transform(**keys), [1, 8, 8], train=3, test=2)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_every_padding_that_is_allowed_works_as_far_as_it_is_allowed(mode):
    x = torch.rand(3, 1, 8, 8)
    assert (
        made(Transform(crop=8, pad=7, pad_mode=mode), [1, 8, 8], train=3, test=2).transform(x, torch.arange(3)).shape
        == x.shape
    )


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_crops_are_pieces_of_the_padded_image_some_of_them_flipped(mode, flip, layout):
    x, keys = torch.rand(40, 3, 6, 9).contiguous(memory_format=layout), torch.arange(40)
    found = Transform(crop=5, pad=3, pad_mode=mode, flip=flip)(x, keys)
    turned = 0
    for image, key, crop in zip(F.pad(x, (3, 3, 3, 3), mode=mode), keys, found):
        down, across, turn, _ = uniform(key, 4).tolist()
        top, left = int(down * 8), int(across * 11)  # of 12 x 15 pixels
        piece = image[:, top : top + 5, left : left + 5]
        assert torch.equal(crop, piece.flip(-1) if flip and turn < 0.5 else piece)
        turned += flip and turn < 0.5
    assert 10 < turned < 30 or not flip


def test_flip_turns_half_and_is_drawn_anew_for_every_key():
    x = torch.arange(4, dtype=torch.float32).view(1, 1, 1, 4).expand(1000, 1, 1, 4)
    y = Transform(flip=True)(x, torch.arange(1000))
    turned = y[:, 0, 0, 0] == 3
    assert 430 < turned.sum() < 570
    assert torch.equal(y[turned][0, 0, 0], torch.tensor([3.0, 2.0, 1.0, 0.0]))
    assert torch.equal(Transform(flip=True)(x), x)


def test_padding_by_reflection():
    x = torch.arange(16, dtype=torch.float32).view(1, 1, 4, 4)
    y = Transform(crop=4, pad=2, pad_mode="reflect")(x.expand(200, 1, 4, 4), torch.arange(200))
    assert y.min() >= 0
    assert len({tuple(one.flatten().tolist()) for one in y}) == 25


def test_whatever_changes_training_images_augments():
    assert all(transform.augments for transform in (Transform(crop=4), Transform(flip=True), Transform(rotate=0.5)))
    assert not Transform(mean=[0.5], std=[0.5], standardise=True).augments


def test_rotation_by_zero_changes_nothing_and_small_ones_little():
    x = torch.rand(8, 1, 9, 9)
    y = Transform(rotate=15.0)(x, torch.arange(8))
    assert not torch.equal(x, y)
    torch.testing.assert_close(y[:, :, 4, 4], x[:, :, 4, 4])


@pytest.mark.parametrize("shape", [(17, 31), (31, 17), (20, 20)])
def test_rotation_is_torchvisions_whatever_the_sides(shape):
    x = torch.arange(1.0, 1 + shape[0] * shape[1]).view(1, 1, *shape)
    for key in torch.arange(4):
        degrees = (uniform(key, 4)[3] * 2 - 1) * 90
        y = Transform(rotate=90.0)(x, key.view(1))
        assert (y != rotate(x[0], float(degrees))).double().mean() < 0.01  # nearest pixels that are as near
