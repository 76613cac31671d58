"""Arithmetic on nested dicts of tensors."""

import torch

from fedexp import tree


def test_mean_is_weighted_and_normalised():
    stack = {"a": {"b": torch.tensor([[1.0, 0.0], [4.0, 8.0]])}}
    assert tree.mean(stack, torch.tensor([2, 6]))["a"]["b"].tolist() == [3.25, 6.0]


def test_mean_takes_what_has_no_mean_from_the_first():
    stack = {"count": torch.tensor([[7, 9], [1, 2]]), "mask": torch.tensor([True, False])}
    merged = tree.mean(stack, torch.tensor([1, 3]))
    assert merged["count"].tolist() == [7, 9]
    assert merged["count"].dtype == torch.int64
    assert merged["mask"].item() is True


def test_leaves_and_grow_are_inverse():
    nested = {"x": {"y": torch.ones(2), "z": torch.zeros(1)}, "w": torch.ones(3)}
    again = tree.grow(list(tree.leaves(nested)))
    assert again["x"]["y"] is nested["x"]["y"]
    assert list(again) == ["x", "w"]


def test_put_writes_rows_in_place():
    stack = {"a": torch.zeros(3, 2)}
    held = stack["a"]
    tree.put(stack, torch.tensor([2, 0]), {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    assert held.tolist() == [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]


def test_sizes_and_norms():
    models = tree.spread({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}, 2)
    assert tree.size_in_bytes(models) == 2 * 3 * 4
    assert tree.join([models]) is models
    assert tree.length(tree.join([models, models])) == 4
    assert tree.row_norms(models).tolist() == [5.0, 5.0]
    assert float(tree.squared_distance({"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([0.0, 4.0])})) == 5.0
