"""What the engine notes of an exchange: examples trained, and how good the received models were."""

import pytest
from worlds import SIZES, make_engine, make_model, make_world

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedcat import FedCat
from fedexp.algorithms.fedconcat import FedConcat
from fedexp.algorithms.ifca import Ifca
from fedexp.engine import Local
from fedexp.measure import accuracy
from fedexp.randomness import generator


@pytest.mark.parametrize(
    ("settings", "of_one"),  # a client of 17 examples
    [({"epochs": 2}, 34), ({"epochs": 2, "drop_last": True}, 32), ({"steps": 1}, 8), ({"steps": 3}, 17),
     ({"steps": 4}, 25), ({"steps": 7, "drop_last": True}, 56)],
)  # fmt: skip
def test_examples_are_those_that_batches_held(settings, of_one):
    local, seen = Local(batch_size=8, lr=0.1, **settings), []

    class Counting(FedAvg):
        def loss(self, model, params, batch, sent):
            seen.append(int(batch.weight.sum()))
            return super().loss(model, params, batch, sent)

    world = make_world()
    model = make_model("linear", world)
    engine, algorithm = make_engine(model, world, local), Counting(len(SIZES), local)
    algorithm.round(algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0))
    (exchange,) = engine.drain()
    assert exchange.examples == sum(seen)
    assert local.examples(17) == of_one


def played(algorithm, rounds):
    """State before each round, and the round's exchange of trained models."""
    world = make_world()
    model = make_model("cnn", world)
    engine = make_engine(model, world, algorithm.local)
    state, found = algorithm.init(world, model, model.params()), []
    for round in range(rounds):
        before = state
        state = algorithm.round(state, world, engine, generator(0, "round", round))
        (exchange,) = [each for each in engine.drain() if each.judge]
        found.append((before, exchange))
    return world, model, engine, found


LOCAL = Local(epochs=5, batch_size=8, lr=0.3)


@pytest.mark.parametrize("make", [FedCat, Ifca], ids=lambda make: make.__name__)
def test_participants_judge_their_own_copy_or_cluster_model(make):
    """Not what the server would evaluate: FedCat's last merged model, IFCA's sum of all clusters."""
    algorithm = make(3, LOCAL)
    world, model, _, found = played(algorithm, 3)
    differs = False
    for before, exchange in found:
        scores = exchange.judge()
        for row, client in enumerate(exchange.ids.tolist()):
            rows = world.of(client)
            own = model(tree.take(exchange.sent.start, row), world.prepare(rows), training=False)
            assert float(scores[row]) == float((own.argmax(1) == world.y[rows]).double().mean())
        merged = accuracy.of_clients(lambda x, now=before: algorithm.predict(now, model, x), world)
        differs |= scores.tolist() != merged[exchange.ids].tolist()
    assert differs


@pytest.mark.parametrize("augmented", [False, True])
def test_the_first_concatenated_model_is_the_sum_of_the_clusters(augmented):
    """With heads side by side: what clients receive is then what was evaluated as one model before."""
    rule = FedConcat(
        6, LOCAL, clustering=lambda k, local: Ifca(k, local, clusters=2), encoder_rounds=2, classifier_start="heads",
        augmented=augmented,
    )  # fmt: skip
    world, model, _, found = played(rule, 4)
    before, exchange = found[2]
    summed = accuracy.of_clients(lambda x: rule.predict(before, model, x), world)
    assert exchange.judge().tolist() == summed[exchange.ids].tolist()
    assert exchange.judge().tolist() != found[3][1].judge().tolist()
