"""PA: heavy-tailed sizes, labels with replacement, examples reused across clients."""

import numpy as np
import pytest
import torch
from worlds import make_dataset

from fedexp.errors import ConfigError
from fedexp.partition.power_law import power_law


def test_sizes_and_labels_follow_the_fitted_constants():
    dataset = make_dataset(np.repeat(np.arange(10), 6000))
    parts = power_law(dataset, 1000, 0, labels_per_client=2, log_mean=4.66, log_deviation=1.63)
    held = np.array([len(dataset.train_y[part].unique()) for part in parts])
    sizes = np.array([len(part) for part in parts])
    assert set(held) == {1, 2} and abs((held == 1).mean() - 0.1) < 0.03
    assert abs(np.log(sizes).mean() - 4.66) < 0.2 and abs(np.log(sizes).std() - 1.63) < 0.15
    assert sizes.min() >= 2 and sizes.max() > 4000
    assert all(len(part.unique()) == len(part) for part in parts), "a client holds an example once"
    everything = torch.cat(parts)
    assert len(everything.unique()) < len(everything), "clients share examples"


def test_labels_of_a_client_are_equally_many_and_never_more_than_there_are():
    dataset = make_dataset(np.repeat(np.arange(6), 50))
    for part in power_law(dataset, 60, 2, labels_per_client=3, log_mean=3, log_deviation=1):
        counts = np.bincount(dataset.train_y[part].numpy())
        counts = counts[counts > 0]
        smallest = counts.min()
        assert all(count in {smallest, 2 * smallest, 3 * smallest, 50} for count in counts)


@pytest.mark.parametrize("log_mean", [800.0, 5.0])
def test_a_size_beyond_all_bounds_is_all_examples_of_a_class(log_mean):
    parts = power_law(make_dataset(torch.arange(60) % 3), 4, 0, labels_per_client=1, log_mean=log_mean, log_deviation=0)
    assert [len(part) for part in parts] == [20] * 4


def test_a_client_holds_at_least_one_example_of_each_of_its_labels():
    parts = power_law(make_dataset(torch.arange(60) % 3), 4, 0, labels_per_client=2, log_mean=-9.0, log_deviation=0)
    assert [len(part) for part in parts] == [2] * 4


def test_more_labels_than_classes_is_an_error():
    with pytest.raises(ConfigError, match=r"partition.labels_per_client=5"):
        power_law(make_dataset([0, 1, 2]), 4, 0, labels_per_client=5, log_mean=1, log_deviation=1)
