"""Scaled signs: by hand, the contraction, one scale a tensor or one for all."""

import pytest
import torch

from fedexp.compression.sign import Sign

KEY = torch.tensor(0)


def test_by_hand():
    """(3, -1, .5, -2): 1.625 (+, -, +, -); the squared error 3.6875 is (1 - .74122807) ||x||^2."""
    x = {"x": torch.tensor([3.0, -1.0, 0.5, -2.0], dtype=torch.float64)}
    compression = Sign()
    payload, memory = compression.encode(x, compression.init(x), KEY)
    read = compression.decode(payload, x)["x"]
    assert read.tolist() == [1.625, -1.625, 1.625, -1.625]
    error = float((x["x"] - read).square().sum())
    assert error == pytest.approx(3.6875)
    assert 1 - error / float(x["x"].square().sum()) == pytest.approx(0.74122807, abs=1e-8)
    assert memory["error"]["x"].tolist() == [1.375, 0.625, -1.125, -0.375]
    payload, memory = compression.encode({"x": -memory["error"]["x"]}, memory, KEY)
    assert payload["magnitudes"].tolist() == [0.0]  # the error and its opposite: nothing is left
    assert memory["error"]["x"].tolist() == [0.0] * 4


@pytest.mark.parametrize(("scale", "expected"), [("tensor", [[2.0], [0.5]]), ("model", [[1.0], [1.0]])])
def test_scales(scale, expected):
    update = {"a": torch.tensor([2.0]), "b": torch.tensor([0.5, -0.5])}
    compression = Sign(error_feedback=False, scale=scale)
    read = compression.decode(compression.encode(update, {}, KEY)[0], update)
    assert [leaf[:1].tolist() for leaf in read.values()] == expected
    assert read["b"][1] == -read["b"][0]


def test_the_sign_of_zero_is_plus():
    update = {"a": torch.tensor([0.0, 4.0])}
    compression = Sign(error_feedback=False)
    assert compression.decode(compression.encode(update, {}, KEY)[0], update)["a"].tolist() == [2.0, 2.0]
