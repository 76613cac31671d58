"""The ragged index and preparing batches."""

import torch
from worlds import SIZES, make_world


def test_label_counts_and_clients():
    world = make_world()
    assert world.clients == 6
    assert world.label_counts.sum(1).tolist() == SIZES
    own = world.y[world.of(2)]
    assert world.label_counts[2].tolist() == torch.bincount(own, minlength=4).tolist()
    assert torch.equal(torch.cat([world.of(client) for client in range(6)]), world.rows)


def test_prepare_scales_bytes_to_unit_interval():
    world = make_world()
    rows = torch.tensor([[0, 1], [2, 3]])
    x = world.prepare(rows)
    assert x.shape == (2, 2, 1, 8, 8)
    torch.testing.assert_close(x[1, 0], world.x[2].double() / 255)


def test_partition_hash_names_the_split():
    assert make_world().partition_hash() == make_world().partition_hash()
    assert make_world().partition_hash() != make_world([10, 35, 17, 30, 8, 20]).partition_hash()
