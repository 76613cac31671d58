"""FedGen: the generator's size and losses by hand, what it learns, neutral setting, bytes, mechanisms, resume."""

import math

import pytest
import torch
import torch.nn.functional as F
from worlds import assert_mechanisms_agree, assert_resumes, gap, make_engine, make_model, make_world, play

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedgen import FedGen
from fedexp.engine import Batch, Local
from fedexp.engine.client import OneClient
from fedexp.errors import ConfigError
from fedexp.measure.communication import traffic
from fedexp.models import Model
from fedexp.models.layers import training
from fedexp.models.mcmahan import mcmahan_cnn
from fedexp.models.simple import simple_cnn
from fedexp.models.tf_tutorial import tf_cnn
from fedexp.randomness import generator

LOCAL = Local(epochs=1, batch_size=8, lr=0.1)
SMALL = {"noise": 5, "hidden": 12, "server_batch": 16, "server_steps": 4, "client_batch": 6}


def make(k=3, local=LOCAL, **change):
    return FedGen(k, local, **{**SMALL, **change})


@pytest.mark.parametrize(
    "net, noise, hidden, size",
    [
        (lambda: mcmahan_cnn((1, 28, 28), 10), 100, 512, 320_512),
        (lambda: tf_cnn((3, 24, 24), 10), 100, 512, 156_352),
        (lambda: simple_cnn((3, 32, 32), 10), 100, 512, 100_948),
    ],
)
def test_generator_has_the_published_sizes(net, noise, hidden, size):
    """Its last layer is as wide as the task model's features; running statistics come on top."""
    model = Model(net())
    algorithm = FedGen(3, LOCAL, noise=noise, hidden=hidden)
    made = algorithm.init(make_world(), model, model.params())["generator"]
    statistics = [name for name in made if "running" in name]
    assert sum(value.numel() for name, value in made.items() if name not in statistics) == size
    assert sum(made[name].numel() for name in statistics) == 2 * hidden


def prepared(algorithm, kind="cnn", rounds=1):
    world = make_world()
    model = make_model(kind, world)
    engine = make_engine(model, world, algorithm.local)
    state = algorithm.init(world, model, model.params())
    for round in range(rounds):
        state = algorithm.round(state, world, engine, generator(0, "round", round))
    return world, model, engine, state


def test_teaching_loss_by_hand():
    """Two heads, two labels, a batch of two; every mean and share written out."""
    algorithm = make(diversity=0.5)
    _, model, _, state = prepared(algorithm)
    draw = torch.Generator().manual_seed(5)
    noise, y = torch.rand(2, 5, generator=draw, dtype=torch.float64), torch.tensor([2, 0])
    heads = {"head.weight": torch.randn(2, 4, 36, generator=draw, dtype=torch.float64)}
    heads["head.bias"] = torch.randn(2, 4, generator=draw, dtype=torch.float64)
    counts = torch.tensor([[3, 0, 1, 0], [1, 5, 7, 0]], dtype=torch.float64)
    maker = algorithm._maker(model)
    loss = algorithm.teaching_loss(maker, model, state["generator"], heads, counts, noise, y)
    g = state["generator"]
    made = []
    for row in range(2):
        asked = torch.cat([noise[row], F.one_hot(y[row], 4).double()])
        inner = g["0.weight"] @ asked + g["0.bias"]
        inner = (inner - g["1.running_mean"]) / (g["1.running_var"] + 1e-5).sqrt() * g["1.weight"] + g["1.bias"]
        made.append(g["3.weight"] @ inner.clamp_min(0) + g["3.bias"])
    share = {0: {0: 3 / 4, 2: 1 / 8}, 1: {0: 1 / 4, 2: 7 / 8}}
    expected = 0.0
    for k in range(2):
        terms = []
        for z, label in zip(made, y.tolist()):
            logits = heads["head.weight"][k] @ z + heads["head.bias"][k]
            terms.append(share[k][label] * float(logits.logsumexp(0) - logits[label]))
        expected += sum(terms) / 2
    e_gap = float((noise[0] - noise[1]).square().mean())
    z_gap = float((made[0] - made[1]).abs().mean())
    expected += 0.5 * math.exp(-2 * e_gap * z_gap / 4)
    assert float(loss) == pytest.approx(expected)


def test_client_loss_by_hand():
    """Cross-entropy, ratio alpha times that of asked labels, beta times KL to the head's view of generated features."""
    algorithm = make(alpha=0.7, beta=0.4, decay=0.9)
    world, model, _, state = prepared(algorithm, rounds=2)
    sent = algorithm.send(state, torch.tensor([1]))
    own = OneClient(*({n: v[0] for n, v in part.items() if not isinstance(v, dict)} for part in sent[:3]))
    own = own._replace(extra={"generator": {name: value[0] for name, value in sent.extra["generator"].items()}})
    assert float(own.memory["alpha"]) == pytest.approx(0.7 * 0.9**2)
    rows = world.of(1)[:8]
    ones = torch.ones(8, dtype=torch.float64)
    batch = Batch(world.prepare(rows), world.y[rows], ones, torch.tensor(1234))
    params = own.start
    drawn = []
    draw = algorithm._draw

    def spy(*arguments):
        drawn.append((arguments[2], draw(*arguments)))
        return drawn[-1][1]

    algorithm._draw = spy
    loss = algorithm.loss(model, params, batch, own)
    (labels_y, for_y), (asked, for_asked) = drawn
    assert torch.equal(labels_y, batch.y) and len(asked) == 6 and asked.min() >= 0 and asked.max() < 4
    logits = model(params, batch.x, training=False)
    head = params["head.weight"], params["head.bias"]
    p = F.linear(for_y, *head).softmax(1)
    kl = (p * (p / logits.softmax(1)).log()).sum(1).mean()
    expected = F.cross_entropy(logits, batch.y) + 0.4 * 0.9**2 * kl
    expected += 6 / 8 * 0.7 * 0.9**2 * F.cross_entropy(F.linear(for_asked, *head), asked)
    assert float(loss) == pytest.approx(float(expected))


def test_every_step_has_noise_of_its_own_and_a_shorter_batch_the_same_for_its_examples():
    algorithm = make()
    _, model, _, state = prepared(algorithm)
    y = torch.tensor([0, 1, 2, 3])
    first = algorithm._draw(model, state["generator"], y, torch.tensor(7), 1000)
    shorter = algorithm._draw(model, state["generator"], y[:2], torch.tensor(7), 1000)
    torch.testing.assert_close(shorter, first[:2])
    assert not torch.allclose(algorithm._draw(model, state["generator"], y, torch.tensor(8), 1000), first)
    assert not torch.allclose(algorithm._draw(model, state["generator"], y, torch.tensor(7), 1001), first)


def test_generator_learns_what_the_heads_know():
    """After some rounds the global head classifies generated features as asked far better than chance."""
    algorithm = make(6, server_steps=60, server_lr=0.01, server_lr_decay=1.0)
    _, model, _, state = prepared(algorithm, rounds=4)
    y = torch.arange(4).repeat(25)
    features = algorithm._draw(model, state["generator"], y, torch.tensor(1), 1000)
    hits = (model.head(state["params"], features).argmax(1) == y).double().mean()
    assert hits > 0.9
    assert state["generator_steps"] == 240


def test_the_server_s_steps_are_adam_s_with_persistent_moments_and_a_falling_rate():
    """Two rounds of two steps beside PyTorch's Adam on the same losses; the batch's statistics are kept."""
    algorithm = make(server_steps=2, server_lr=0.01, server_lr_decay=0.5, server_weight_decay=0.3)
    _, model, _, state = prepared(algorithm, rounds=1)
    maker = algorithm._maker(model)
    heads = {"head.weight": torch.randn(2, 4, 36, generator=torch.Generator().manual_seed(2), dtype=torch.float64)}
    heads["head.bias"] = torch.zeros(2, 4, dtype=torch.float64)
    counts = torch.tensor([[3, 2, 4, 0], [1, 5, 7, 0]], dtype=torch.int32)
    losses = []
    loss = algorithm.teaching_loss
    algorithm.teaching_loss = lambda *arguments: losses.append(arguments[4:]) or loss(*arguments)
    start = {**state, "moments": tree.apply(torch.zeros_like, state["moments"]), "generator_steps": 0}
    found = start
    for round in (1, 2):
        found = {**found, "round": round}
        found |= algorithm.teach(found, maker, model, heads, counts, generator(round, "t"))
    algorithm.teaching_loss = loss
    own = {name: value.clone() for name, value in start["generator"].items()}
    weights = [own[name].requires_grad_() for name in maker.weights]
    adam = torch.optim.Adam(weights, weight_decay=0.3)
    for step, asked in enumerate(losses):
        adam.param_groups[0]["lr"] = 0.01 * 0.5 ** (1 + step // 2)
        with training(None, torch.tensor(0)) as now:
            value = loss(maker, model, own, heads, *asked)
        for weight, slope in zip(weights, torch.autograd.grad(value, weights)):
            weight.grad = slope
        adam.step()
        own.update({name: statistic.detach() for name, statistic in now.statistics.items()})
    assert len(losses) == found["generator_steps"] == 4
    for name, value in found["generator"].items():
        torch.testing.assert_close(value, own[name].detach(), rtol=1e-9, atol=1e-12)


def test_only_labels_of_which_someone_has_two_are_asked_for():
    algorithm = make()
    _, model, _, state = prepared(algorithm)
    asked = []
    algorithm.teaching_loss = lambda maker, model, generator, heads, counts, noise, y: (
        asked.append(y) or generator["0.weight"].sum() + generator["0.bias"].sum() + sum(
            generator[name].sum() for name in ("1.weight", "1.bias", "3.weight", "3.bias")
        )
    )  # fmt: skip
    counts = torch.tensor([[5, 1, 0, 0], [0, 1, 0, 2]], dtype=torch.int32)
    algorithm.teach(state, algorithm._maker(model), model, {}, counts, torch.Generator().manual_seed(0))
    assert set(torch.cat(asked).tolist()) == {0, 3}


def test_without_its_terms_it_is_fedavg():
    neutral = play(lambda k, local: make(k, local, alpha=0, beta=0), "norm")
    assert gap(neutral, play(lambda k, local: FedAvg(k, local), "norm")) == 0


@pytest.mark.parametrize("term", ["alpha", "beta"])
def test_each_term_differs_from_fedavg_from_round_two_on(term):
    other = {"alpha": "beta", "beta": "alpha"}[term]
    ours, plain = (lambda k, local: make(k, local, **{term: 1.0, other: 0.0})), (lambda k, local: FedAvg(k, local))
    assert gap(play(ours, count=1), play(plain, count=1)) == 0
    assert gap(play(ours, count=3), play(plain, count=3)) > 1e-3


def test_sends_the_generator_down_and_label_counts_up_once():
    world = make_world(dtype=torch.float32)
    model = make_model("norm", world, torch.float32)
    algorithm, engine = make(6), make_engine(model, world, LOCAL)
    state = algorithm.init(world, model, model.params())
    size = 4 * sum(value.numel() for value in model.params().values())
    weights = (5 + 4) * 12 + 12 + 2 * 12 + 12 * 36 + 36
    generated = 4 * (weights + 2 * 12)
    expected = [(6 * (size + 4 * 4), 6 * size), (6 * size, 6 * (size + generated))]
    for round in range(2):
        state = algorithm.round(state, world, engine, generator(0, "round", round))
        assert traffic(engine.drain()) == expected[round]
    assert torch.equal(state["label_counts"].long(), world.label_counts)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(make, kind)


def test_resumes():
    assert_resumes(make, "norm")


def test_seeds_differ_in_their_generators():
    world = make_world()
    model = make_model("cnn", world)
    first, second = (
        make(server_steps=1).round(
            make().init(world, model, model.params()), world, make_engine(model, world, LOCAL), generator(seed, "r", 0)
        )["generator"]["0.weight"]
        for seed in (0, 1)
    )
    assert (first - second).abs().max() > 0.01


def test_settings_are_checked():
    for change in ({"alpha": -1}, {"noise": 0}, {"decay": 0}, {"server_lr": 0}, {"server_steps": 0}):
        with pytest.raises(ConfigError, match=f"algorithm.{next(iter(change))}="):
            make(**change)
