"""What every data set must be like, whatever its source; the source is named where it is not."""

import numpy as np
import pytest
import torch

from fedexp.data import Dataset, Transform
from fedexp.errors import ConfigError

Y = torch.tensor([0, 1, 2])
X = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
FLOATS = torch.linspace(-9, 9, 30).view(3, 10)


def dataset(**changes):
    given = {"train_x": X, "train_y": Y, "test_x": X, "test_y": Y, "classes": 3, "transform": Transform(), **changes}
    return Dataset("own", **given)


def not_finite(value, dtype=torch.float32):
    x = FLOATS.to(dtype, copy=True)
    x[2, 9] = value
    return x


@pytest.mark.parametrize("source", [None, "/place/of/it"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_y": Y[:2]}, "has 3 train examples but 2 train labels; each needs one"),
        ({"test_x": X[:1]}, "has 1 test examples but 3 test labels; each needs one"),
        ({"train_x": X[:0], "train_y": Y[:0]}, "has no train examples"),
        ({"train_y": Y + 1}, "train labels must be int64 from 0 to 2, for 3 classes; they are int64 from 1 to 3"),
        ({"test_y": Y - 1}, "test labels must be int64 from 0 to 2, for 3 classes; they are int64 from -1 to 1"),
        ({"train_y": Y.int()}, "train labels must be int64 .* they are int32 from 0 to 2"),
        ({"train_y": Y.double()}, "train labels must be int64 .* they are float64 from 0.0 to 2.0"),
        ({"test_y": Y[:, None]}, r"test labels must be one number per example, not of shape \(3, 1\)"),
        ({"train_y": Y.numpy()}, "train examples and labels must be tensors"),
        ({"train_x": X.long()}, r"train examples must be uint8 \(from 0 to 255\) or floating, not int64"),
        ({"train_x": X.flatten(1).short() - 9}, "has train tokens below 0"),
        ({"train_x": X.bool()}, r"train examples must be uint8 \(from 0 to 255\) or floating, not bool"),
        ({"train_x": not_finite(float("nan")), "test_x": FLOATS}, "has train examples that are not finite"),
        ({"train_x": FLOATS, "test_x": not_finite(float("inf"))}, "has test examples that are not finite"),
        (
            {"train_x": FLOATS, "test_x": not_finite(float("-inf"), torch.bfloat16)},
            "has test examples that are not fin",
        ),
        ({"train_x": X[..., :0]}, r"has train examples of shape \(1, 4, 0\), which are empty"),
        ({"test_x": torch.zeros(3)}, r"has test examples of shape \(\), which are empty"),
        ({"test_x": X[..., :3]}, r"train examples are of shape \(1, 4, 4\), test examples of \(1, 4, 3\)"),
        ({"test_x": X.float()}, "train and test examples are uint8 and float32; .* both must be uint8, or neither"),
        ({"test_x": X.expand(3, 3, 4, 4), "transform": Transform(crop=2)}, ".*they must be alike"),
        ({"owners": Y[:2]}, r"has owners of shape \(2,\); each of 3 train examples needs one"),
        ({"owners": Y - 2}, "owners must be integers from 0, or -1 for unknown; they are int64 from -2"),
        ({"owners": Y.float()}, "owners must be integers from 0, .* they are float32"),
        ({"owners": Y * 0 - 1}, "has owners that are all unknown; leave them out"),
        ({"class_names": ["a", "b"]}, "has 2 class names; 3 classes need as many"),
        ({"class_names": np.array(["a", "b", "c"])}, "has class names that are no list of words"),
        ({"class_names": [0, 1, 2]}, "has class names that are no list of words"),
        ({"classes": 3.0}, "has 3.0 classes; their number must be an int"),
        ({"train_x": FLOATS.double() * 1e300, "test_x": FLOATS}, "has train examples that are not finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_together_is_refused(changes, said, source):
    named = "" if source is None else f"{source}: "
    with pytest.raises(ConfigError, match=f"^dataset=own: {named}{said}"):
        dataset(**changes, source=source)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train_x": FLOATS, "test_x": FLOATS.double()},
        {"train_x": FLOATS.to(torch.bfloat16), "test_x": FLOATS.half()},
        {"train_x": X + 255},
        {"classes": 9},
        {"owners": Y - 1, "class_names": ["a", "b", "c"]},
        {"owners": Y.to(torch.uint8), "class_names": ("a", "b", "c")},
        {"owners": torch.tensor([-1, 0, -1])},
        {"train_x": X.flatten(1).short(), "test_x": X.flatten(1).long()},
        {"test_x": X[:1], "test_y": Y[:1]},
        {"test_x": X[..., :4, :3], "transform": Transform(crop=3)},
        {"test_x": X[..., :3, :3], "transform": Transform(crop=3)},
    ],
    ids=" ".join,
)
def test_what_fits_together_is_taken(changes):
    assert len(dataset(**changes).train_x) == 3
