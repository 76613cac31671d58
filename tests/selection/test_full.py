"""Full participation: all clients in their order; the mean of uniform cohorts that are everyone."""

import pytest
from worlds import LOCAL, gap, make_context, make_model, make_world, play, rounds

from fedexp.algorithms.fedavg import FedAvg
from fedexp.errors import ConfigError
from fedexp.selection.full import Full


def context(cohort):
    world = make_world()
    return make_context(make_model("linear", world), world, LOCAL, cohort)


def test_all_clients_take_part_in_their_order_and_count_by_examples():
    for done in rounds(FedAvg(selection=Full()), context(6), 2):
        assert done.ids.tolist() == [0, 1, 2, 3, 4, 5]
        assert Full().weights(done.ids, done.ctx).tolist() == [5, 40, 17, 30, 8, 20]


def test_it_is_fedavg_with_a_cohort_of_all_but_for_the_order():
    assert gap(play(FedAvg(selection=Full()), "norm", cohort=6), play(FedAvg(), "norm", cohort=6)) < 1e-12


def test_a_smaller_cohort_is_refused():
    with pytest.raises(ConfigError, match=r"clients_per_round=3: .*use clients_per_round=6"):
        FedAvg(selection=Full()).check(context(3))
