"""Accuracy by class, and how it is written."""

import math
from dataclasses import replace

import pytest
import torch
from worlds import make_world

from fedexp.measure import accuracy
from fedexp.record import confusion


def says(labels, classes=4):
    """A predictor that gives these labels, in the order in which it is asked."""
    left = list(labels)

    def predict(x):
        now = [left.pop(0) for _ in range(len(x))]
        return torch.nn.functional.one_hot(torch.tensor(now), classes).double()

    return predict


def world_with(labels):
    """A world with test examples of these labels."""
    world = make_world()
    return replace(world, test_x=world.test_x[:1].repeat(len(labels), 1, 1, 1), test_y=torch.tensor(labels))


def test_confusion_by_hand():
    world = make_world()
    truth = world.test_y.tolist()
    wrong = [(label + (row % 3 == 0)) % 4 for row, label in enumerate(truth)]
    counts = accuracy.confusion(says(wrong), world, chunk=7)
    expected = torch.zeros(4, 4, dtype=torch.int64)
    for row, label in enumerate(truth):
        expected[label, wrong[row]] += 1
    assert torch.equal(counts, expected)
    hits, loss = accuracy.test(says(wrong), world, chunk=7)  # a logit of 1 for the class that it says, of 0 for others
    missed = 40 - int(counts.diagonal().sum())
    assert float(loss) == pytest.approx(math.log(math.e + 3) - 1 + missed / 40)
    assert float(hits) == pytest.approx(int(counts.diagonal().sum()) / 40)


def test_a_cpu_is_given_few_examples_at_a_time_and_each_once():
    world = world_with([0, 1, 2, 3] * 50)
    seen = []

    def predict(x):
        seen.append(len(x))
        return torch.ones(len(x), 4)

    accuracy.test(predict, world)
    assert max(seen) <= 100
    assert sum(seen) == 200


def test_logits_that_are_no_numbers_predict_no_class():
    """Not class 0, whose share a diverged model would otherwise have as its accuracy, and by which it may reach a
    target."""
    world = make_world()
    right = says(world.test_y.tolist())

    def half(x):
        logits = right(x)
        logits[::2, 3] = torch.nan
        return logits

    counts = accuracy.confusion(half, world, chunk=8)
    assert torch.equal(counts, counts.diagonal().diag()) and int(counts.sum()) == 20
    right = says(world.test_y.tolist())
    assert float(accuracy.test(half, world, chunk=8)[0]) == 0.5
    frame = confusion.per_class(counts, world.test_counts, list("abcd"))
    assert frame.examples.tolist() == world.test_counts.tolist()
    assert float((frame.accuracy * frame.examples).sum()) == pytest.approx(20)


def test_by_class_counts_the_class_s_own_examples():
    """Of four classes with 5, 3, 1 and 0 test examples; the first of each class is mistaken for the next class."""
    labels = [0, 0, 0, 0, 0, 1, 1, 1, 2]
    world = world_with(labels)
    found = accuracy.by_class(says([1, 0, 0, 0, 0, 2, 1, 1, 3]), world)
    assert found.tolist() == pytest.approx([4 / 5, 2 / 3, 0, 0])
    assert accuracy.by_class(says(labels), world).tolist() == [1, 1, 1, 0]


def test_what_chance_may_give_by_hand():
    """The commonest of 100 test examples is of class 1, 36 times: two standard errors are 2 * .048."""
    world = world_with([0] * 20 + [1] * 36 + [2] * 24 + [3] * 20)
    assert accuracy.by_chance(world) == pytest.approx((0.36, 0.456))


def test_per_class_accuracy_and_a_class_without_examples():
    counts = torch.tensor([[3, 1, 0], [0, 0, 0], [2, 2, 4]])
    frame = confusion.per_class(counts, torch.tensor([4, 0, 8]), ["a", "b", "c"])
    assert frame.accuracy["a"] == 0.75 and frame.accuracy["c"] == 0.5 and frame.accuracy.isna()["b"]
    assert frame.examples.tolist() == [4, 0, 8]
    assert confusion.table(counts, ["a", "b", "c"]).loc["c", "b"] == 2
    image = confusion.picture(counts, ["a", "b", "c"]).axes[0].images[0].get_array()
    assert image[2].tolist() == [0.25, 0.25, 0.5] and image[1].tolist() == [0, 0, 0]
