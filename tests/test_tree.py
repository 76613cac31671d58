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
    nested = {"x": {"y": torch.ones(2), "z": torch.zeros(1)}, "w": torch.ones(3), "none": {"there": {}}}
    again = tree.grow(tree.apply(lambda leaf: None, nested), dict(tree.leaves(nested)))
    assert again["x"]["y"] is nested["x"]["y"]
    assert list(again) == ["x", "w", "none"]
    assert again["none"] == {"there": {}}


def test_put_writes_rows_in_place():
    stack = {"a": torch.zeros(3, 2)}
    held = stack["a"]
    tree.put(stack, torch.tensor([2, 0]), {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    assert held.tolist() == [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]


def test_columns_are_all_entries_of_several_stacks_in_double_precision():
    many = 2**16 + 3
    models = {"a": torch.rand(2, 3, many // 3 + 1), "b": torch.rand(2)}
    other = {"c": torch.zeros(2, 1), **tree.spread({"b": torch.tensor(0.5), "a": torch.rand(3, many // 3 + 1)}, 2)}
    parts = list(tree.columns(models, other))
    assert len(parts) == 3 and {part.dtype for pair in parts for part in pair} == {torch.float64}
    for stack, found in zip((models, other), zip(*parts)):
        expected = torch.cat([stack["a"].flatten(1), stack["b"][:, None]], 1).double()
        assert torch.equal(torch.cat(found, 1), expected)


def test_sizes_and_distances():
    models = tree.spread({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}, 2)
    assert tree.size_in_bytes(models) == 2 * 3 * 4
    assert tree.join([models]) is models
    assert tree.length(tree.join([models, models])) == 4
    assert float(tree.squared_distance({"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([0.0, 4.0])})) == 5.0


def test_a_model_as_one_vector_and_back():
    model = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([7.0])}
    vector = tree.flat(model)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 7]
    again = tree.split(vector, model)
    assert list(again) == ["a", "b"] and all(torch.equal(again[name], model[name]) for name in model)
