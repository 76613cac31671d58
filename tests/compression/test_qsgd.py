"""QSGD: values and probabilities by hand, unbiased, its variance."""

import pytest
import torch

from fedexp.compression.qsgd import Qsgd
from fedexp.errors import ConfigError

KEYS = torch.arange(40_000) * 7919 + 3


def read(compression, update, keys=KEYS):
    payloads = torch.vmap(lambda key: compression.encode(update, {}, key)[0])(keys)
    return torch.vmap(lambda payload: compression.decode(payload, update))(payloads)


def test_by_hand():
    """(3, 4) in 4 levels of its norm 5: 2.4 and 3.2 levels become 2 or 3 and 3 or 4, of 1.25 each; variance .625."""
    x = torch.tensor([3.0, 4.0], dtype=torch.float64)
    found = read(Qsgd(levels=4), {"x": x})["x"]
    assert sorted(set(map(tuple, found.tolist()))) == [(2.5, 3.75), (2.5, 5.0), (3.75, 3.75), (3.75, 5.0)]
    standard_error = (found.std(0) / len(KEYS) ** 0.5).tolist()
    assert found.mean(0).tolist() == [pytest.approx(3, abs=4 * standard_error[0]),
                                      pytest.approx(4, abs=4 * standard_error[1])]  # fmt: skip
    assert (found - x).square().sum(1).mean() == pytest.approx(0.625, rel=0.02)
    payload, _ = Qsgd(levels=4).encode({"x": x.float()}, {}, torch.tensor(0))
    assert payload["norms"].tolist() == [5.0] and payload["codes"].numel() == 1  # 32 + 2 * 4 bits


@pytest.mark.parametrize("levels", [1, 3, 7])
@pytest.mark.parametrize("scale", ["tensor", "model"])
def test_unbiased_with_the_exact_variance(levels, scale):
    """Of an entry at a fraction f between two levels f (1 - f) (norm / s)^2; each tensor in its own norm, or not."""
    draw = torch.Generator().manual_seed(2)
    x = {"a": torch.randn(3, 2, generator=draw).double(), "b": 10 * torch.randn(4, generator=draw).double()}
    found = read(Qsgd(levels=levels, scale=scale), x)
    whole = torch.cat([leaf.flatten() for leaf in x.values()]).norm()
    for name, leaf in x.items():
        norm = whole if scale == "model" else leaf.norm()
        fraction = levels * leaf.abs() / norm % 1
        variance = fraction * (1 - fraction) * (norm / levels) ** 2
        assert ((found[name].mean(0) - leaf).abs() <= 4 * (variance / len(KEYS)).sqrt() + 1e-12).all()
        measured = (found[name] - leaf).square().mean(0).sum()
        assert measured == pytest.approx(float(variance.sum()), rel=0.05)


def test_the_largest_possible_entry_is_the_highest_level():
    """An entry that is the whole norm crosses exactly, and what is 0 crosses as 0, whatever is drawn."""
    found = read(Qsgd(levels=7), {"x": torch.tensor([0.0, -0.3, 0.0])}, KEYS[:500])["x"]
    assert (found[:, 1] == -torch.tensor(0.3)).all() and (found[:, [0, 2]] == 0).all()


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"compression\.levels=0: must be at least 1"):
        Qsgd(levels=0)
    with pytest.raises(ConfigError, match=r"compression\.scale=layer: must be one of tensor, model"):
        Qsgd(scale="layer")
