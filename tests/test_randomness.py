"""Keyed randomness: named by use, uniform, the same for one client and for a cohort."""

import multiprocessing
import random
import time
from itertools import count
from threading import Event, Thread

import numpy as np
import torch
from scipy import stats
from torch import nn

from fedexp.randomness import generator, key, numpy_generator, seeded, uniform


def test_keys_name_uses():
    names = {key(seed, purpose, where) for seed in range(5) for purpose in "ab" for where in range(50)}
    assert len(names) == 500
    assert key(1, "shuffle", 2, 3) != key(1, "shuffle", 23)


def test_keys_and_draws_are_those_of_every_other_process():
    """A run that goes on elsewhere draws what it would have drawn here. The key's bytes are b2sum's:
    printf 1:shuffle:2:3 | b2sum -l 64."""
    assert key(1, "shuffle", 2, 3) == int.from_bytes(bytes.fromhex("d125037bce628054"), "little")
    assert torch.randint(1000, (5,), generator=generator(0, "x", 1)).tolist() == [799, 857, 635, 759, 252]
    assert numpy_generator(0, "x").integers(0, 1000, 5).tolist() == [469, 425, 299, 494, 135]


def test_hashed_numbers_are_uniform_and_independent():
    keys = torch.arange(1000) + key(0, "noise") // 2
    numbers = uniform(keys, 100)
    assert stats.kstest(numbers.flatten().numpy(), "uniform").pvalue > 1e-3
    for other in (uniform(keys, 100, stream=1), numbers.roll(1, 0), numbers.roll(1, 1)):
        correlation = torch.corrcoef(torch.stack([numbers.flatten(), other.flatten()]))[0, 1]
        assert correlation.abs() < 0.015
    by_bit = ((numbers * 2**16).long().unsqueeze(-1) >> torch.arange(16)) & 1
    assert (by_bit.double().mean((0, 1)) - 0.5).abs().max() < 0.01


def test_hashed_numbers_do_not_depend_on_company():
    keys = torch.tensor([5, 6, 7])
    assert torch.equal(uniform(keys, 10)[1], uniform(keys[1], 10))
    assert torch.equal(torch.func.vmap(lambda k: uniform(k, 10))(keys), uniform(keys, 10))


def test_hashed_numbers_stay_below_one_where_float32_rounds_up():
    numbers = uniform(torch.tensor([15816853]), 2)
    assert 1 - 2**-23 < numbers.max() < 1


def drawn():
    return [random.random(), np.random.random(), float(torch.rand(())), nn.Linear(1, 1).weight.item()]  # noqa: NPY002


def test_global_generators_are_seeded_within_a_block_and_then_as_before():
    with seeded(1):
        expected = drawn()
    with seeded(1):
        with seeded(key(0, "x")):
            first = drawn()
            with seeded(key(0, "y")):
                inner = drawn()
            outer = drawn()
        assert drawn() == expected
    with seeded(key(0, "x")):
        assert [drawn(), drawn()] == [first, outer]
    assert all(a != b for a, b in zip(first, inner))


def test_blocks_of_two_threads_leave_the_generators_as_they_were():
    """Though the first to begin is the first to end."""
    begun, ended = Event(), Event()

    def first():
        with seeded(1):
            begun.set()
            ended.wait(20)

    with seeded(7):
        expected = drawn()
    with seeded(7):
        thread = Thread(target=first)
        thread.start()
        begun.wait(20)
        with seeded(2):
            ended.set()
            thread.join()
            inside = drawn()
        assert drawn() == expected
    with seeded(2):
        assert drawn() == inside


def test_a_held_block_is_not_disturbed_by_other_threads_or_held_up_in_a_fork():
    def draw():
        found = []
        for _ in range(20):
            found.append(float(torch.rand(())))
            time.sleep(0.001)
        return found

    def disturb():
        for number in count():
            with seeded(number):
                if over.is_set():
                    return

    with seeded(5):
        alone = draw()
    over = Event()
    threads = [Thread(target=disturb) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with seeded(5, held=True):
            beside = draw()
            child = multiprocessing.get_context("fork").Process(target=lambda: Thread(target=disturb_once).start())
            child.start()
            child.join(20)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert beside == alone
    assert child.exitcode == 0


def disturb_once():
    with seeded(1):
        pass
