"""FedSoft: shares by hand, when they are estimated, its loss and its means by hand, its bytes."""

import pytest
import torch
from worlds import (
    LOCAL,
    assert_mechanisms_agree,
    assert_resumes,
    gap,
    make_context,
    make_model,
    make_world,
    play,
    rounds,
    start,
)

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedsoft import FedSoft
from fedexp.engine import Local, client_rows
from fedexp.errors import ConfigError
from fedexp.randomness import generator


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_vectorized_equals_one_by_one(kind):
    assert_mechanisms_agree(FedSoft(clusters=3, mu=0.3), kind)


def test_workers_equal_one_process():
    alone, pool = (play(FedSoft(clusters=3, mu=0.3), workers=workers, count=4) for workers in (1, 2))
    assert gap(alone, pool) == 0


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_resumes(kind):
    assert_resumes(FedSoft(clusters=3, mu=0.3), kind)


def test_one_cluster_without_a_proximal_term_is_fedavg():
    soft = play(FedSoft(clusters=1, mu=0.0), "norm")["params"]
    fedavg = play(FedAvg(), "norm")["params"]
    for name, leaf in fedavg.items():
        torch.testing.assert_close(soft[name][0], leaf, rtol=0, atol=1e-12)


def models(*answers):
    """Linear models of which each always answers the same class."""
    biases = torch.eye(4, dtype=torch.float64)[list(answers)]
    return {"head.weight": torch.zeros(len(answers), 4, 64, dtype=torch.float64), "head.bias": biases}


def answering(algorithm, labels, cohort=1, local=LOCAL, mechanism="workers", dtype=torch.float64):
    """(the context, the first State): model c always answers class c; clients of 4 examples each."""
    world = make_world([4] * (len(labels) // 4), dtype=dtype)
    world.y[world.rows] = torch.tensor(labels)
    ctx = make_context(make_model("linear", world, dtype), world, local, cohort, engine=mechanism)
    given = {name: leaf.to(dtype) for name, leaf in models(*range(algorithm.clusters)).items()}
    return ctx, {**start(algorithm, ctx), "params": given}


def test_shares_count_examples_and_have_a_floor():
    """Three examples of class 1 and one of class 2: shares floor, 3/4, 1/4. The last client's label is no model's."""
    algorithm = FedSoft(clusters=3)
    ctx, state = answering(algorithm, [1, 2, 1, 1, 0, 0, 0, 0, 3, 3, 3, 3], cohort=3)
    (only,) = rounds(algorithm, ctx, 1, state)
    expected = torch.tensor([[1e-4, 0.75, 0.25], [1.0, 1e-4, 1e-4], [1.0, 1e-4, 1e-4]], dtype=torch.float64)
    torch.testing.assert_close(only.uploads["importance"], expected[only.ids])
    assert only.after["assigned"].tolist() == [1, 0, 0]


def test_models_that_differ_by_rounding_alone_do_not_divide_the_examples():
    """A second model that is better by less than rounding has no examples; one that is better by more has all."""
    algorithm, ids = FedSoft(clusters=2), torch.tensor([0])
    ctx, state = answering(algorithm, [1] * 8)
    for better, shares in ((1e-15, [1.0, 1e-4]), (1e-9, [1e-4, 1.0])):
        given = models(1, 1)
        given["head.bias"][1] *= 1 + better
        found = ctx.engine.inspect(algorithm, ids, algorithm.download({**state, "params": given}, ids, ctx), {})
        assert found["importance"].tolist() == [shares]


def test_the_lowest_loss_counts_in_single_precision_too():
    """Losses of 7e-6 and 3e-7: both small, and yet the second model is far better on every example."""
    algorithm, ids = FedSoft(clusters=2), torch.tensor([0])
    ctx, state = answering(algorithm, [1] * 8, dtype=torch.float32)
    given = {name: leaf.float() for name, leaf in models(1, 1).items()}
    given["head.bias"] *= torch.tensor([[13.0], [16.0]])
    found = ctx.engine.inspect(algorithm, ids, algorithm.download({**state, "params": given}, ids, ctx), {})
    torch.testing.assert_close(found["importance"], torch.tensor([[1e-4, 1.0]]))


def take_part(algorithm, ctx, state, number, ids):
    """(which model suits each of `ids` best by its shares in round `number`, the State with what they remember)."""
    ids = torch.tensor(ids)
    memory = client_rows.take(state["memory"], ids)
    trained = ctx.engine.train(algorithm, number, ids, algorithm.download(state, ids, ctx), memory)
    kept = client_rows.put(state["memory"], ids, trained.memory)
    return trained.uploads["importance"].argmax(1).tolist(), {**state, "memory": kept}


def estimated(state):
    clients = torch.arange(len(state["assigned"]))
    return client_rows.take(state["memory"], clients)["own"]["estimated"].tolist()


@pytest.mark.parametrize("mechanism", ["workers", "vectorized"])
def test_shares_stand_for_an_interval(mechanism):
    algorithm = FedSoft(clusters=2, interval=2)
    ctx, state = answering(algorithm, [1, 1, 1, 1, 0, 0, 0, 0], mechanism=mechanism)
    assert estimated(state) == [-2, -2]
    best, state = take_part(algorithm, ctx, state, 0, [0])
    assert (best, estimated(state)) == ([1], [0, -2])
    state["params"] = models(1, 0)
    best, state = take_part(algorithm, ctx, state, 1, [0, 1])  # only client 1 is due
    assert (best, estimated(state)) == ([1, 1], [0, 1])
    best, state = take_part(algorithm, ctx, state, 2, [0, 1])
    assert (best, estimated(state)) == ([0, 1], [2, 1])


def test_measures_ask_every_client_also_those_never_drawn():
    """By largest share of examples: 3/4 of class 1, all of class 0, 3/4 of class 2. Only client 1 has an estimate,
    which does not count."""
    algorithm = FedSoft(clusters=3)
    ctx, state = answering(algorithm, [1, 2, 1, 1, 0, 0, 0, 0, 2, 0, 2, 2])
    _, state = take_part(algorithm, ctx, {**state, "params": models(2, 1, 0)}, 0, [1])
    state["params"] = models(0, 1, 2)
    score = (3 / 4 + 1 + 3 / 4) / 3
    assert algorithm.metrics(state, ctx) == {"assigned_accuracy": pytest.approx(score)}
    assert algorithm.summary(state, ctx) == {"clients_by_cluster": [1, 1, 1]}
    assert ctx.engine.drain() == (0, 0)
    assert estimated(state) == [-2, 0, -2]


def test_proximal_step_by_hand_and_all_models_follow():
    """The first step's pull is -lr mu sum_s u_s (w - w_s): the class-0 logits' bias starts at 1 in model 0,
    at 0 in model 1. Without a proximal term the same step lacks just that. Of one client all models become its own."""
    local, back = Local(epochs=1, batch_size=100, lr=0.5, momentum=0.0), {}
    for mu in (0.0, 0.8):
        algorithm = FedSoft(clusters=2, mu=mu)
        ctx, state = answering(algorithm, [0, 0, 0, 1, 3, 3, 3, 3], local=local)
        ids = torch.tensor([0])
        download, memory = algorithm.download(state, ids, ctx), client_rows.take(state["memory"], ids)
        uploads = ctx.engine.train(algorithm, 0, ids, download, memory).uploads
        uploads = {**uploads, "update": uploads["update"]["encoded"]}
        back[mu] = algorithm.starts(state, ids, uploads, ctx)["head.bias"][0] + uploads["update"]["head.bias"][0]
        after = algorithm.aggregate(state, ids, uploads, ctx, generator(0, "round", 0))
        torch.testing.assert_close(after["params"]["head.bias"], back[mu].expand(2, -1), rtol=0, atol=1e-15)
    # Shares 3/4 (model 0, the start) and 1/4 (model 1).
    pull = -0.5 * 0.8 * 0.25 * torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(back[0.8] - back[0.0], pull, rtol=0, atol=1e-12)


def test_means_weigh_by_examples_and_shares():
    """Client 0 started from model 0, client 1 from model 1; both models become means of both returned ones."""
    world = make_world([3, 5])
    model = make_model("linear", world)
    algorithm, ctx = FedSoft(clusters=2), make_context(model, world, LOCAL, cohort=2)
    state, ids = start(algorithm, ctx), torch.tensor([0, 1])
    draw = torch.Generator().manual_seed(0)
    update = {
        name: torch.randn(2, *leaf.shape, generator=draw, dtype=leaf.dtype) for name, leaf in model.params().items()
    }
    uploads = {"update": update, "importance": torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)}
    merged = algorithm.aggregate(state, ids, uploads, ctx, generator(0, "round", 0))["params"]["head.weight"]
    w = state["params"]["head.weight"] + update["head.weight"]
    torch.testing.assert_close(merged[0], (3 * 0.9 * w[0] + 5 * 0.4 * w[1]) / (2.7 + 2.0))
    torch.testing.assert_close(merged[1], (3 * 0.1 * w[0] + 5 * 0.6 * w[1]) / (0.3 + 3.0))


def test_bytes_are_all_models_down_and_one_up_with_the_shares():
    """Every round needs all centers, whether or not shares are estimated."""
    world = make_world()
    model = make_model("norm", world)
    size = tree.size_in_bytes(model.params())
    for done in rounds(FedSoft(clusters=4), make_context(model, world, LOCAL, cohort=2), 2):
        assert (done.bytes_up, done.bytes_down) == (2 * (size + 4 * 8), 2 * 4 * size)


def test_settings_out_of_bounds_are_refused():
    for key, value in (("mu", -0.1), ("interval", 0)):
        with pytest.raises(ConfigError, match=rf"algorithm\.{key}={value}"):
            FedSoft(**{key: value})
