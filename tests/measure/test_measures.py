"""Measures by hand."""

import torch
from worlds import make_world

from fedexp.engine import Exchange, Sent, Trained
from fedexp.measure import accuracy
from fedexp.measure.cohort import cohort_measures
from fedexp.measure.communication import traffic
from fedexp.measure.divergence import layer_divergence, weight_divergence
from fedexp.measure.skew import emd, mean_emd
from fedexp.tree import spread


def test_emd_by_hand():
    """Population (6, 6)/12; client 0 all of class 0: |1 - .5| + |0 - .5| = 1; client 1: |2/8 - .5| * 2 = .5."""
    counts = torch.tensor([[4, 0], [2, 6]])
    assert emd(counts).tolist() == [1.0, 0.5]
    assert abs(mean_emd(counts) - (4 * 1 + 8 * 0.5) / 12) < 1e-12
    assert mean_emd(counts, torch.tensor([0])) == 1.0


def test_emd_of_one_class_clients_is_zhaos_largest():
    assert torch.allclose(emd(torch.eye(10, dtype=torch.int64) * 600), torch.full((10,), 1.8, dtype=torch.float64))
    assert emd(torch.full((5, 10), 3)).abs().max() == 0


def test_divergence_by_hand():
    models = {"layer.weight": torch.tensor([[[3.0, 4.0]], [[0.0, 5.0]]]), "layer.bias": torch.tensor([[0.0], [1.0]])}
    centres = spread({"layer.weight": torch.tensor([[0.0, 5.0]]), "layer.bias": torch.tensor([0.0])}, 2)
    found = weight_divergence(models, centres)
    torch.testing.assert_close(found, torch.tensor([10.0**0.5 / 5, 1 / 5]))
    layers = layer_divergence(models, centres)
    assert list(layers) == ["layer.weight"]
    torch.testing.assert_close(layers["layer.weight"], torch.tensor([10.0**0.5 / 5, 0.0]))


def test_traffic_counts_every_tensor_and_nothing_that_stays():
    ids, zero = torch.tensor([0, 1]), torch.zeros(2)
    start = spread({"w": torch.zeros(3)}, 2)
    sent = Sent(start, extra={"c": torch.zeros(2, 5)}, memory={"own": torch.zeros(2, 100)})
    trained = Trained({"w": torch.zeros(2, 3)}, zero, zero, zero, {"count": torch.zeros(2, dtype=torch.int64)})
    assert traffic([Exchange(ids, sent, trained)]) == (2 * (12 + 8), 2 * (12 + 20))
    assert traffic([Exchange(ids, sent._replace(travels=False), trained)]) == (0, 0)
    assert traffic([Exchange(ids, None, trained)]) == (40, 0)
    assert traffic([Exchange(ids, Sent({}, {"e": torch.zeros(2, 1)}), None)]) == (0, 8)


def test_cohort_measures_gather_all_exchanges():
    counts = torch.tensor([[4, 0], [2, 6]])
    model = {"w": torch.tensor([[3.0, 4.0]]), "running": torch.tensor([[9.0]])}
    exchanges = [
        Exchange(torch.tensor([k]), None, Trained(model, torch.tensor([3]), torch.tensor([8]), torch.tensor([loss])))
        for k, loss in ((0, 1.0), (1, 2.0))
    ]
    centre = {"w": torch.tensor([[0.0, 5.0]] * 2), "running": torch.zeros(2, 1)}
    row = cohort_measures(exchanges, ["w"], lambda ids: centre, counts)
    assert row["local_loss"] == 1.5
    assert abs(row["divergence_mean"] - 10**0.5 / 5) < 1e-6
    assert abs(row["cohort_emd"] - (4 * 1 + 8 * 0.5) / 12) < 1e-12


def test_accuracy_of_a_known_predictor():
    world = make_world()
    right, loss = accuracy.test(lambda x: torch.nn.functional.one_hot(world.test_y, 4).double() * 50, world, chunk=40)
    assert float(right) == 1
    assert float(loss) < 1e-6
    first = accuracy.test(lambda x: torch.tensor([[1.0, 0, 0, 0]]).expand(len(x), 4), world, chunk=7)[0]
    assert abs(float(first) - float((world.test_y == 0).double().mean())) < 1e-6
