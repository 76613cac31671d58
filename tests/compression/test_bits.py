"""Numbers of a few bits: packed without gaps, read back, vectorized alike."""

import pytest
import torch

from fedexp.compression.bits import pack, unpack, width


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 7, 8, 11, 17])
@pytest.mark.parametrize("count", [1, 7, 8, 37])
def test_packed_without_gaps_and_read_back(bits, count):
    numbers = torch.randint(0, 2**bits, (3, count), generator=torch.Generator().manual_seed(0))
    numbers[0], numbers[1] = 0, 2**bits - 1
    packed = torch.vmap(lambda row: pack(row, bits))(numbers)
    assert packed.dtype == torch.uint8 and packed.shape == (3, -(-count * bits // 8))
    assert torch.equal(packed, torch.stack([pack(row, bits) for row in numbers]))
    assert torch.equal(torch.vmap(lambda row: unpack(row, count, bits))(packed), numbers)
    assert torch.equal(unpack(packed[2], count, bits), numbers[2])


def test_bits_by_hand():
    """5, 1, 6 of three bits each, the lowest first: 101 100 01 and 1 with seven bits of padding."""
    assert pack(torch.tensor([5, 1, 6]), 3).tolist() == [0b10_001_101, 0b1]


@pytest.mark.parametrize(("largest", "bits"), [(0, 1), (1, 1), (2, 2), (14, 4), (15, 4), (16, 5), (62_005, 16)])
def test_how_many_bits_a_number_takes(largest, bits):
    assert width(largest) == bits
