"""A row for each client that has one: who has which, what is still readable, how much is kept."""

import torch

from fedexp import tree
from fedexp.engine import client_rows


def store(clients=6):
    return client_rows.new({"w": torch.zeros(2)}, clients)


def put(before, ids, *values):
    return client_rows.put(before, torch.tensor(ids), {"w": torch.tensor(values)[:, None].expand(-1, 2)})


def rows(found, ids=range(6)):
    return client_rows.take(found, torch.tensor(list(ids)))["w"][:, 0].tolist()


def test_each_reads_its_last_row_and_the_others_the_first():
    found = put(store(), [4, 1], 40.0, 10.0)
    assert rows(found) == [0, 10, 0, 0, 40, 0]
    found = put(found, [1, 0], 11.0, 5.0)
    assert rows(found) == [5, 11, 0, 0, 40, 0]
    assert client_rows.held(found, torch.arange(6)).tolist() == [True, True, False, False, True, False]


def test_the_store_before_is_as_it_was():
    """A round's measures read the State that it began with."""
    first = put(store(), [4, 1], 40.0, 10.0)
    second = put(first, [1, 4], 11.0, 41.0)
    assert rows(first) == [0, 10, 0, 0, 40, 0]
    third = put(second, [4, 2], 42.0, 22.0)
    assert rows(second) == [0, 11, 0, 0, 41, 0]
    assert rows(third) == [0, 11, 22, 0, 42, 0]


def test_a_client_drawn_twice_has_one_row():
    found = put(store(), [3, 3, 2], 30.0, 30.0, 20.0)
    assert rows(found) == [0, 0, 20, 30, 0, 0]
    assert found["count"] == 2


def test_memory_is_of_those_who_took_part_and_of_one_cohort_more():
    found = store(1000)
    for number in range(200):
        found = put(found, [number % 50, 50 + number % 7, 999], 1.0, 2.0, float(number))
    assert rows(found, [999]) == [199]
    assert found["count"] <= 50 + 7 + 1 + 3
    assert tree.length(found["rows"]) <= 2 * found["count"]
